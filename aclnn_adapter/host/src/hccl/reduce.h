#pragma once

#include <cstddef>
#include <vector>

#include "hccl/abi.h"

namespace host::hccl {

// Combines `count` elements of every part, in the order of the parts, into `out`, which may be one of them.
// 16-bit floats are combined in float32 and rounded once.
void reduce(const std::vector<const void *> &parts, std::size_t count, HcclDataType dtype, HcclReduceOp op, void *out);

}  // namespace host::hccl
