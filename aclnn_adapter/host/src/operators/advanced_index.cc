// Indexing by lists of tensors, one for each of the first axes, as NumPy and PyTorch do it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

using Numbers = std::vector<std::int64_t>;

// Where the element at a position of a shape, counted through, lies.
std::int64_t offset_of(std::int64_t position, const Shape &shape, const Shape &strides) {
  std::int64_t offset = 0;
  for (std::size_t i = shape.size(); i-- > 0; position /= shape[i]) offset += position % shape[i] * strides[i];
  return offset;
}

Numbers read(const Tensor &tensor) {
  Numbers values(static_cast<std::size_t>(tensor.size()));
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    load(tensor, offset_of(i, tensor.shape, tensor.strides), 1, 1, &values[static_cast<std::size_t>(i)]);
  }
  return values;
}

// The indices into one axis, with the shape in which they are given.
struct AxisIndex {
  std::size_t axis;
  Shape shape;
  Numbers values;
};

// A mask covers as many axes as it has, and stands for the positions at which it is true.
void add_mask(const Tensor &mask, std::size_t axis, std::vector<AxisIndex> &indices) {
  const Numbers chosen = read(mask);
  std::vector<Numbers> positions(mask.rank());
  const Shape dense = contiguous_strides(mask.shape);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] == 0) continue;
    for (std::size_t k = 0; k < mask.rank(); ++k) {
      positions[k].push_back(static_cast<std::int64_t>(i) / dense[k] % mask.shape[k]);
    }
  }
  for (std::size_t k = 0; k < mask.rank(); ++k) {
    const auto count = static_cast<std::int64_t>(positions[k].size());
    indices.push_back({axis + k, {count}, std::move(positions[k])});
  }
}

Shape broadcast(const Shape &a, const Shape &b) {
  Shape result = a.size() >= b.size() ? a : b;
  const Shape &other = a.size() >= b.size() ? b : a;
  for (std::size_t i = 0; i < other.size(); ++i) {
    std::int64_t &size = result[result.size() - other.size() + i];
    require(size == other[i] || size == 1 || other[i] == 1, kInvalid, "indices of shapes ", to_string(a), " and ",
            to_string(b));
    if (size == 1) size = other[i];
  }
  return result;
}

// What a list of index tensors selects of a tensor: a shape, and where each of its elements lies.
struct Selection {
  Shape shape;
  Numbers offsets;
};

// An empty tensor stands for a whole axis; but where it could be an index, and no other index selects anything, it selects
// nothing.
bool whole_axis(const Tensor &index, const TensorList &list) {
  const auto selects = [](const auto &other) { return !is_floating(other->dtype) && !other->empty(); };
  return index.empty() && (is_floating(index.dtype) || std::any_of(list.tensors.begin(), list.tensors.end(), selects));
}

Selection select(const Tensor &self, const TensorList &list) {
  std::vector<AxisIndex> indices;
  std::size_t axis = 0;
  for (const auto &index : list.tensors) {
    const bool mask = index->dtype == ACL_BOOL, absent = !mask && whole_axis(*index, list);
    require(axis + (mask ? index->rank() : 1) <= self.rank(), kInvalid, "more indices than ", self.describe(), " has axes");
    if (mask) add_mask(*index, axis, indices);
    if (!mask && !absent) indices.push_back({axis, index->shape, read(*index)});
    axis += mask ? index->rank() : 1;
  }
  Shape common;
  std::vector<char> indexed(self.rank(), 0);
  bool adjacent = true;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    common = broadcast(common, indices[i].shape);
    indexed[indices[i].axis] = 1;
    adjacent = adjacent && (i == 0 || indices[i].axis == indices[i - 1].axis + 1);
  }
  // The axes of the indices stand where the indexed axes stood, or in front where those are apart.
  const std::size_t place = indices.empty() || !adjacent ? 0 : indices[0].axis;
  Shape kept, kept_strides;
  for (std::size_t i = 0; i < self.rank(); ++i) {
    if (indexed[i]) continue;
    kept.push_back(self.shape[i]);
    kept_strides.push_back(self.strides[i]);
  }
  const auto at = static_cast<std::ptrdiff_t>(place);
  Selection found{kept, {}};
  found.shape.insert(found.shape.begin() + at, common.begin(), common.end());
  Shape strides = kept_strides;
  strides.insert(strides.begin() + at, common.size(), 0);

  const std::int64_t total = element_count(found.shape);
  const Shape dense = contiguous_strides(found.shape);
  for (std::int64_t position = 0; position < total; ++position) {
    std::int64_t offset = offset_of(position, found.shape, strides);
    for (const AxisIndex &index : indices) {
      std::int64_t entry = 0;
      const std::size_t more = common.size() - index.shape.size();
      for (std::size_t k = 0; k < index.shape.size(); ++k) {
        const std::int64_t coordinate = position / dense[place + more + k] % common[more + k];
        entry = entry * index.shape[k] + (index.shape[k] == 1 ? 0 : coordinate);
      }
      const std::int64_t size = self.shape[index.axis], given = index.values[static_cast<std::size_t>(entry)];
      require(given >= -size && given < size, kRuntimeError, "index ", given, " into an axis of ", size);
      offset += (given < 0 ? given + size : given) * self.strides[index.axis];
    }
    found.offsets.push_back(offset);
  }
  return found;
}

Plan index(const Tensor &self, const TensorList &indices, Tensor &out) {
  return {[&] {
    const Selection selection = select(self, indices);
    require(out.shape == selection.shape, kInvalid, "aclnnIndex: out is ", out.describe(), ", not ",
            to_string(selection.shape));
    with_compute(compute_type(self.dtype), [&](auto value) {
      for (std::size_t i = 0; i < selection.offsets.size(); ++i) {
        load(self, selection.offsets[i], 1, 1, &value);
        store(&value, out, offset_of(static_cast<std::int64_t>(i), out.shape, out.strides), 1, 1);
      }
    });
  }};
}

Plan index_put(Tensor &self, const TensorList &indices, const Tensor &values, bool accumulate, bool) {
  return {[&, accumulate] {
    const Selection selection = select(self, indices);
    const Shape strides = broadcast_strides(values, selection.shape);
    with_compute(compute_type(self.dtype), [&](auto value) {
      for (std::size_t i = 0; i < selection.offsets.size(); ++i) {
        auto before = value;
        load(values, offset_of(static_cast<std::int64_t>(i), selection.shape, strides), 1, 1, &value);
        load(self, selection.offsets[i], 1, 1, &before);
        if (accumulate) value += before;
        store(&value, self, selection.offsets[i], 1, 1);
      }
    });
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnIndex, host::index)
ACLNN_OPERATOR(aclnnIndexPutImpl, host::index_put)
