// Writing to positions that another tensor holds.
#include "framework/dense.h"
#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/indexing.h"
#include "operators/moving.h"

namespace host {
namespace {

// What becomes of an element and what is written to it: 0 replaces, 1 adds, 2 multiplies.
template <typename C>
C combined(std::int64_t reduce, C before, C value) {
  if (reduce == 0) return value;
  return reduce == 1 ? before + value : before * value;
}

void check(const char *name, const Tensor &self, const Tensor &index, std::int64_t reduce) {
  require(self.rank() == index.rank(), kInvalid, name, ": ", index.describe(), " in ", self.describe());
  require(reduce >= 0 && reduce <= 2, kInvalid, name, ": reduce ", reduce, " is not 0, 1 or 2");
}

// out[index[i][j]][j] = source[i][j] for axis 0
void write(const Tensor &out, std::size_t axis, const Tensor &index, const Tensor &source, std::int64_t reduce) {
  with_compute(compute_type(out.dtype), [&](auto value) {
    for_each_index(out, axis, index, source, [&](std::int64_t to, std::int64_t from) {
      auto before = value;
      load(out, to, 1, 1, &before);
      load(source, from, 1, 1, &value);
      value = combined(reduce, before, value);
      store(&value, out, to, 1, 1);
    });
  });
}

void write(const Tensor &out, std::size_t axis, const Tensor &index, const Scalar &number, std::int64_t reduce) {
  with_compute(compute_type(out.dtype), [&](auto zero) {
    using C = decltype(zero);
    for_each_index(out, axis, index, index, [&](std::int64_t to, std::int64_t) {
      C value{};
      load(out, to, 1, 1, &value);
      value = combined(reduce, value, number.as<C>());
      store(&value, out, to, 1, 1);
    });
  });
}

template <typename Source>
Plan scatter(const Tensor &self, std::int64_t axis, const Tensor &index, const Source &source, std::int64_t reduce,
             Tensor &out) {
  check("aclnnScatter", self, index, reduce);
  require(self.shape == out.shape, kInvalid, "aclnnScatter: ", self.describe(), " into ", out.describe());
  return {[&, reduce, counted = axis_of(axis, self.rank())] {
    copy_elements(self, out);
    write(out, counted, index, source, reduce);
  }};
}

template <typename Source>
Plan scatter_in_place(Tensor &self, std::int64_t axis, const Tensor &index, const Source &source, std::int64_t reduce) {
  check("aclnnInplaceScatter", self, index, reduce);
  return {[&, reduce, counted = axis_of(axis, self.rank())] { write(self, counted, index, source, reduce); }};
}

// out = self with alpha times the slices of source added to those that the indices name
Plan index_add(const Tensor &self, std::int64_t axis, const Tensor &index, const Tensor &source, const Scalar &alpha,
               Tensor &out) {
  const std::size_t counted = axis_of(axis, self.rank());
  Shape wanted = self.shape;
  wanted[counted] = index.size();
  require(index.rank() <= 1 && source.shape == wanted && self.shape == out.shape, kInvalid, "aclnnIndexAdd: ",
          source.describe(), " at ", index.describe(), " into ", out.describe());
  return {[&, counted] {
    copy_elements(self, out);
    const auto indices = read_indices(index);
    with_compute(compute_type(out.dtype), [&](auto zero) {
      using C = decltype(zero);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const std::int64_t place = position(indices[i], out.shape[counted], "aclnnIndexAdd");
        const Tensor to = narrowed(out, counted, place, 1);
        map<C>([a = alpha.as<C>()](C sum, C term) { return sum + a * term; }, to, to,
               narrowed(source, counted, static_cast<std::int64_t>(i), 1));
      }
    });
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnScatter, host::scatter<host::Tensor>)
ACLNN_OPERATOR(aclnnScatterValue, host::scatter<host::Scalar>)
ACLNN_OPERATOR(aclnnInplaceScatter, host::scatter_in_place<host::Tensor>)
ACLNN_OPERATOR(aclnnInplaceScatterValue, host::scatter_in_place<host::Scalar>)
ACLNN_OPERATOR(aclnnIndexAdd, host::index_add)
