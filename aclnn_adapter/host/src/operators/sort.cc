// What depends on the order of the elements along an axis.
#include <algorithm>
#include <numeric>
#include <vector>

#include "framework/operator.h"
#include "framework/parallel.h"
#include "operators/along_axis.h"

namespace host {
namespace {

// Not a number counts as the largest.
template <typename C>
bool less(C a, C b) {
  if (a != a) return false;
  return b != b || a < b;
}

// The first `count` elements of every line in ascending or descending order, equal ones as they stand.
void sort_lines(const Tensor &self, std::size_t axis, bool descending, std::int64_t count, const Tensor &values,
                const Tensor &indices) {
  const auto from = line_starts(self, axis), to = line_starts(values, axis), places = line_starts(indices, axis);
  const std::int64_t length = self.shape[axis];
  with_compute(compute_type(self.dtype), [&](auto zero) {
    using C = decltype(zero);
    parallel_for(static_cast<std::int64_t>(from.size()), self.size() > (1 << 14), [&](std::int64_t line) {
      const auto at = static_cast<std::size_t>(line);
      std::vector<C> elements(static_cast<std::size_t>(length)), best(static_cast<std::size_t>(count));
      load(self, from[at], self.strides[axis], length, elements.data());
      std::vector<std::int64_t> order(elements.size());
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const C x = elements[static_cast<std::size_t>(a)], y = elements[static_cast<std::size_t>(b)];
        return descending ? less(y, x) : less(x, y);
      });
      for (std::size_t i = 0; i < best.size(); ++i) best[i] = elements[static_cast<std::size_t>(order[i])];
      store(best.data(), values, to[at], values.strides[axis], count);
      store(order.data(), indices, places[at], indices.strides[axis], count);
    });
  });
}

Plan sort(const Tensor &self, bool, std::int64_t axis, bool descending, Tensor &values, Tensor &indices) {
  require(values.shape == self.shape && indices.shape == self.shape, kInvalid, "aclnnSort: ", self.describe(), " into ",
          values.describe(), " and ", indices.describe());
  const std::size_t counted = axis_of(axis, std::max<std::size_t>(self.rank(), 1));
  return {[&, counted, descending] {
    const Tensor whole = at_least_one_axis(self);
    sort_lines(whole, counted, descending, whole.shape[counted], at_least_one_axis(values), at_least_one_axis(indices));
  }};
}

Plan top_k(const Tensor &self, std::int64_t k, std::int64_t axis, bool largest, bool, Tensor &values, Tensor &indices) {
  const Tensor whole = at_least_one_axis(self);
  const std::size_t counted = axis_of(axis, whole.rank());
  Shape wanted = whole.shape;
  require(k >= 0 && k <= wanted[counted], kInvalid, "aclnnTopk: k ", k, " of ", self.describe());
  wanted[counted] = k;
  require(at_least_one_axis(values).shape == wanted && at_least_one_axis(indices).shape == wanted, kInvalid,
          "aclnnTopk: ", k, " of ", self.describe(), " into ", values.describe(), " and ", indices.describe());
  return {[&, counted, largest, k] {
    sort_lines(at_least_one_axis(self), counted, largest, k, at_least_one_axis(values), at_least_one_axis(indices));
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnSort, host::sort)
ACLNN_OPERATOR(aclnnTopk, host::top_k)
