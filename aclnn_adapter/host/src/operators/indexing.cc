#include "operators/indexing.h"

#include <vector>

#include "framework/dense.h"
#include "framework/operator.h"
#include "operators/lines.h"

namespace host {

std::vector<std::int64_t> read_indices(const Tensor &tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.size()));
  const Shape dense = contiguous_strides(tensor.shape);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < tensor.rank(); ++axis) {
      offset += i / dense[axis] % tensor.shape[axis] * tensor.strides[axis];
    }
    load(tensor, offset, 1, 1, &values[static_cast<std::size_t>(i)]);
  }
  return values;
}

std::int64_t position(std::int64_t index, std::int64_t size, const char *name) {
  const std::int64_t counted = index < 0 ? index + size : index;
  require(counted >= 0 && counted < size, kRuntimeError, name, ": index ", index, " of ", size);
  return counted;
}

namespace {

Tensor at(const Tensor &tensor, std::size_t axis, std::int64_t index) {
  Tensor view = tensor;
  view.offset += index * tensor.strides[axis];
  view.shape[axis] = 1;
  return view;
}

}  // namespace

void select(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &out, const char *name) {
  const auto indices = read_indices(index);
  Tensor to = out;  // the axes of the indices as one
  const auto first = static_cast<std::ptrdiff_t>(axis), count = static_cast<std::ptrdiff_t>(index.rank());
  to.shape.erase(to.shape.begin() + first, to.shape.begin() + first + count);
  to.strides.erase(to.strides.begin() + first, to.strides.begin() + first + count);
  to.shape.insert(to.shape.begin() + first, 1);
  to.strides.insert(to.strides.begin() + first, 0);
  const Shape dense = contiguous_strides(index.shape);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    Tensor slot = to;
    for (std::size_t k = 0; k < index.rank(); ++k) {
      slot.offset += static_cast<std::int64_t>(i) / dense[k] % index.shape[k] * out.strides[axis + k];
    }
    copy_elements(at(self, axis, position(indices[i], self.shape[axis], name)), slot);
  }
}

void one_hot(const Tensor &self, const Tensor &on, const Tensor &off, std::size_t axis, const Tensor &out) {
  double hot = 0, cold = 0;
  load(on, 0, 1, 1, &hot);
  load(off, 0, 1, 1, &cold);
  map<double>([cold] { return cold; }, out);
  const auto indices = read_indices(self);
  const Shape dense = contiguous_strides(self.shape);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= out.shape[axis]) continue;
    std::int64_t offset = indices[i] * out.strides[axis];
    for (std::size_t k = 0; k < self.rank(); ++k) {
      offset += static_cast<std::int64_t>(i) / dense[k] % self.shape[k] * out.strides[k < axis ? k : k + 1];
    }
    store(&hot, out, offset, 1, 1);
  }
}

void for_each_index(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &source,
                    const std::function<void(std::int64_t, std::int64_t)> &work) {
  const auto indices = read_indices(index);
  const Shape dense = contiguous_strides(index.shape);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::int64_t in_self = position(indices[i], self.shape[axis], "gather or scatter") * self.strides[axis];
    std::int64_t in_source = 0;
    for (std::size_t k = 0; k < index.rank(); ++k) {
      const std::int64_t coordinate = static_cast<std::int64_t>(i) / dense[k] % index.shape[k];
      if (k != axis) in_self += coordinate * self.strides[k];
      in_source += coordinate * source.strides[k];
    }
    work(in_self, in_source);
  }
}

namespace {

Plan embedding(const Tensor &weight, const Tensor &indices, Tensor &out) {
  require(out.rank() == indices.rank() + 1, kInvalid, "aclnnEmbedding: ", indices.describe(), " in ", out.describe());
  return {[&] { select(weight, 0, indices, out, "aclnnEmbedding"); }};
}

Plan index_select(const Tensor &self, std::int64_t axis, const Tensor &index, Tensor &out) {
  require(index.rank() <= 1 && out.rank() == self.rank(), kInvalid, "aclnnIndexSelect: ", index.describe());
  return {[&, counted = axis_of(axis, self.rank())] {
    Tensor line = index;
    if (line.rank() == 0) line.shape = line.strides = {1};
    select(self, counted, line, out, "aclnnIndexSelect");
  }};
}

Plan embedding_backward(const Tensor &grad, const Tensor &indices, std::uint64_t count, std::uint64_t padding, bool,
                        Tensor &out) {
  require(out.rank() == 2 && out.shape[0] == static_cast<std::int64_t>(count), kInvalid,
          "aclnnEmbeddingDenseBackward: ", count, " rows in ", out.describe());
  return {[&, padding] {
    const auto rows = read_indices(indices);
    const auto width = static_cast<std::size_t>(out.shape[1]);
    std::vector<double> sums(static_cast<std::size_t>(out.size()));
    const Lines grads(grad, grad.rank() - 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == static_cast<std::int64_t>(padding)) continue;
      const std::int64_t row = position(rows[i], out.shape[0], "aclnnEmbeddingDenseBackward");
      const Line line = grads.read(static_cast<std::int64_t>(i));
      for (std::size_t j = 0; j < width; ++j) sums[static_cast<std::size_t>(row) * width + j] += line[j];
    }
    Lines::from_axis(out, 0).write(0, Line(sums.begin(), sums.end()));
  }};
}

// out[i][j] = self[index[i][j]][j] for axis 0
Plan gather(const Tensor &self, std::int64_t axis, const Tensor &index, Tensor &out) {
  require(self.rank() == index.rank() && out.shape == index.shape, kInvalid, "aclnnGather: ", index.describe(), " of ",
          self.describe());
  return {[&, counted = axis_of(axis, self.rank())] {
    for_each_index(self, counted, index, out, [&](std::int64_t from, std::int64_t to) {
      double value = 0;
      load(self, from, 1, 1, &value);
      store(&value, out, to, 1, 1);
    });
  }};
}

// out = self with source added at the indices
Plan scatter_add(const Tensor &self, std::int64_t axis, const Tensor &index, const Tensor &source, Tensor &out) {
  require(self.shape == out.shape && self.rank() == index.rank(), kInvalid, "aclnnScatterAdd: ", index.describe(),
          " in ", self.describe());
  return {[&, counted = axis_of(axis, self.rank())] {
    copy_elements(self, out);
    for_each_index(out, counted, index, source, [&](std::int64_t to, std::int64_t from) {
      double sum = 0, value = 0;
      load(out, to, 1, 1, &sum);
      load(source, from, 1, 1, &value);
      sum += value;
      store(&sum, out, to, 1, 1);
    });
  }};
}

Plan one_hot_plan(const Tensor &self, std::int64_t classes, const Tensor &on, const Tensor &off, std::int64_t axis,
                  Tensor &out) {
  const std::size_t counted = axis_of(axis, out.rank());
  require(out.shape[counted] == classes, kInvalid, "aclnnOneHot: ", classes, " classes in ", out.describe());
  return {[&, counted] { one_hot(self, on, off, counted, out); }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnEmbedding, host::embedding)
ACLNN_OPERATOR(aclnnEmbeddingDenseBackward, host::embedding_backward)
ACLNN_OPERATOR(aclnnIndexSelect, host::index_select)
ACLNN_OPERATOR(aclnnGather, host::gather)
ACLNN_OPERATOR(aclnnScatterAdd, host::scatter_add)
ACLNN_OPERATOR(aclnnOneHot, host::one_hot_plan)
