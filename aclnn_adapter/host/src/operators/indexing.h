// Reading at positions that another tensor holds.
#pragma once

#include "framework/objects.h"

namespace host {

// The slices of one axis that the indices name. The axes of the indices stand in out where the axis was.
void select(const Tensor &self, std::size_t axis, const Tensor &index, const Tensor &out, const char *name);

}  // namespace host
