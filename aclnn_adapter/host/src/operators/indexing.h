// What depends on positions that another tensor holds.
#pragma once

#include <functional>
#include <vector>

#include "framework/objects.h"

namespace host {

// The elements of a tensor of integers.
std::vector<std::int64_t> read_indices(const Tensor &tensor);

// A position on an axis; negative ones count from the end.
std::int64_t position(std::int64_t index, std::int64_t size, const char *name);

// Calls work(offset in self, offset in source) for every element of the indices, which are positions along the axis.
void for_each_index(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &source,
                    const std::function<void(std::int64_t, std::int64_t)> &work);

// The slices of one axis that the indices name. The axes of the indices stand in out where the axis was.
void select(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &out, const char *name);

// `on` where the position along the axis is the index, `off` elsewhere.
void one_hot(const Tensor &self, const Tensor &on, const Tensor &off, std::size_t axis, const Tensor &out);

}  // namespace host
