// What depends on positions that another tensor holds.
#pragma once

#include "framework/objects.h"

namespace host {

// The slices of one axis that the indices name. The axes of the indices stand in out where the axis was.
void select(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &out, const char *name);

// `on` where the position along the axis is the index, `off` elsewhere.
void one_hot(const Tensor &self, const Tensor &on, const Tensor &off, std::size_t axis, const Tensor &out);

}  // namespace host
