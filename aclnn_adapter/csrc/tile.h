// SPDX-License-Identifier: Apache-2.0
// Tiles of kTile columns as fp32 vectors.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

constexpr int kTileVectors = kTile / kLanes;

// One tile of a row as fp32, zero beyond its width.
template <typename Scalar>
inline void copy_tile(const Scalar *from, int64_t width, float *to) {
  if (width == kTile) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) store(to + v * kLanes, load(from + v * kLanes));
    return;
  }
  for (int64_t c = 0; c < kTile; c += kLanes) store(to + c, c < width ? load_up_to(from + c, width - c) : Vec{});
}

}  // namespace MHC_ISA
}  // namespace mhc
