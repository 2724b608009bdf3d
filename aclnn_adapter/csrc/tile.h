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

// Rows that will be needed soon. A product asks for them part by part while it computes, so that they arrive meanwhile;
// the hardware does not guess the next row of a tile by itself.
struct Ahead {
  const void *first;  // null: nothing
  int64_t rows;
  int64_t row_step;  // bytes
  int64_t row_bytes;

  // part i of n
  template <int kToWrite = 0>
  inline void fetch(int64_t i, int64_t n) const {
    if (!first) return;
    for (int64_t row = rows * i / n; row < rows * (i + 1) / n; ++row) {
      const char *p = static_cast<const char *>(first) + row * row_step;
      for (int64_t byte = 0; byte < row_bytes; byte += kAlignment) __builtin_prefetch(p + byte, kToWrite);
    }
  }
};

}  // namespace MHC_ISA
}  // namespace mhc
