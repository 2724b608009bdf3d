// Copies between views, which the aclnn and the older operator interface share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "framework/objects.h"

namespace host {

// Copies elements to another shape or dtype: `from` is broadcast, and converted once.
void convert(const Tensor &from, const Tensor &to);

// `size` positions of one axis, from `start` on, every `step`-th.
Tensor narrowed(const Tensor &tensor, std::size_t axis, std::int64_t start, std::int64_t size, std::int64_t step = 1);

// The tensors one after another along an axis of their own.
void stack(const std::vector<const Tensor *> &tensors, std::size_t axis, const Tensor &out);

// Every axis as often as its number says.
void repeat(const Tensor &self, const std::vector<std::int64_t> &times, const Tensor &out);

}  // namespace host
