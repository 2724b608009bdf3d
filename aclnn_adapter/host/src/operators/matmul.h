// Matrix products that other files use as well.
#pragma once

#include "framework/objects.h"

namespace host {

// out = a b over the last two axes; the leading ones of a and b broadcast to those of out.
void multiply_batches(const Tensor &a, const Tensor &b, const Tensor &out);

}  // namespace host
