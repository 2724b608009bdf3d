// Lines along one axis in any of the types that the engine computes in.
#pragma once

#include <vector>

#include "operators/engine.h"

namespace host {

// A scalar is a line of one element.
inline Tensor at_least_one_axis(Tensor tensor) {
  if (tensor.rank() == 0) tensor.shape = tensor.strides = {1};
  return tensor;
}

// Where the lines along an axis begin, in the order of the other axes: two tensors that differ in that axis alone have
// corresponding lines at the same places of the two lists.
inline std::vector<std::int64_t> line_starts(const Tensor &tensor, std::size_t axis) {
  Shape shape = tensor.shape;
  shape[axis] = 1;
  const std::int64_t count = element_count(shape);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(count));
  for (std::int64_t line = 0; line < count; ++line) {
    std::int64_t rest = line, offset = 0;
    for (std::size_t i = shape.size(); i-- > 0; rest /= shape[i]) offset += rest % shape[i] * tensor.strides[i];
    starts[static_cast<std::size_t>(line)] = offset;
  }
  return starts;
}

}  // namespace host
