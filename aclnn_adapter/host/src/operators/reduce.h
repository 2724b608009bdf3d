// Reductions that other files use as well.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/objects.h"

namespace host {

enum class Reduction { kSum, kMean, kMax, kMin };

// No axes mean all of them. `out` may keep the reduced axes or not.
void reduce_axes(Reduction kind, const Tensor &self, const std::vector<std::int64_t> &axes, const Tensor &out);

// Where along one axis the largest element is; the first of equals.
void arg_max(const Tensor &self, std::size_t axis, const Tensor &indices);

// The p-norm of all elements.
void norm_of_all(const Tensor &self, double power, const Tensor &out);

}  // namespace host
