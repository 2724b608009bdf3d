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

// phi * gamma of one tile: [F, kTile], zero beyond the width
inline void pack_tile(const PreLayout &l, const float *phi, const float *gamma, int64_t tile, float *packed) {
  const int64_t column = l.column(tile), width = l.width(tile);
  for (int64_t k = 0; k < l.f; ++k) {
    float *to = packed + k * kTile;
    copy_tile(phi + k * l.nd + column, width, to);
    if (!gamma) continue;
    for (int64_t c = 0; c < width; ++c) to[c] *= gamma[column + c];
  }
}

// The cache lines that the next piece of work will read, asked for one at a time in the innermost loop of a product, so
// that they arrive while it computes. The hardware does not guess the next row of a tile; and of many requests at once it
// drops those beyond its buffers.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const void *base, const int64_t *offsets, int64_t count)
      : base_(static_cast<const char *>(base)), next_(offsets), end_(offsets + count) {}

  inline void fetch() {
    if (next_ != end_) __builtin_prefetch(base_ + *next_++);
  }

 private:
  const char *base_ = nullptr;
  const int64_t *next_ = nullptr, *end_ = nullptr;
};

// Where the lines of `rows` rows of `row_bytes`, `row_step` bytes apart, lie behind the first. Returns how many they are.
inline int64_t line_offsets(int64_t rows, int64_t row_step, int64_t row_bytes, int64_t *offsets) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t byte = 0; byte < row_bytes; byte += kAlignment) offsets[count++] = row * row_step + byte;
  }
  return count;
}

}  // namespace MHC_ISA
}  // namespace mhc
