// SPDX-License-Identifier: Apache-2.0
// What is compiled once per instruction set: the work on a range of tokens, or on a range of columns, by one thread.
// Threads, scratch memory and the choice of the instruction set are the callers' (pre.cc, post.cc, sinkhorn.cc).
#pragma once

#include <cstdint>

#include "mhc.h"

namespace mhc {

// Tokens are taken in blocks, so that what is loaded of phi serves many of them; columns in tiles, so that a tile of phi
// stays in the innermost cache. A tile lies within one stream; the last tile of a stream may be narrower.
constexpr int kTokenBlock = 32;
constexpr int kTile = 64;

// The run of tiles over which a product with phi is summed in registers: short enough for its part of x to stay in the
// innermost cache.
constexpr int kStripTiles = 8;

// The cache line, which is also the widest vector.
constexpr int64_t kAlignment = 64;

// always_inline: these are called from what is compiled once per instruction set, and the linker would take any of the
// copies for all.
struct PreLayout {
  [[gnu::always_inline]] explicit PreLayout(const Sizes &sizes)
      : n(sizes.streams),
        d(sizes.hidden),
        nd(n * d),
        f(num_gates(n)),
        tiles_per_stream((d + kTile - 1) / kTile),
        tiles(n * tiles_per_stream),
        strips((tiles + kStripTiles - 1) / kStripTiles) {}

  [[gnu::always_inline]] int64_t stream(int64_t tile) const { return tile / tiles_per_stream; }
  // the first column of a tile, within its stream and within the token
  [[gnu::always_inline]] int64_t first(int64_t tile) const { return tile % tiles_per_stream * kTile; }
  [[gnu::always_inline]] int64_t column(int64_t tile) const { return stream(tile) * d + first(tile); }
  [[gnu::always_inline]] int64_t width(int64_t tile) const { return d - first(tile) < kTile ? d - first(tile) : kTile; }
  // how many tiles the strip has that starts with this one
  [[gnu::always_inline]] int64_t strip_tiles(int64_t tile) const {
    return tiles - tile < kStripTiles ? tiles - tile : kStripTiles;
  }
  // phi, and its gradient, by tiles: [tiles, F, kTile], zero beyond the width
  [[gnu::always_inline]] int64_t packed_size() const { return tiles * f * kTile; }

  int64_t n, d, nd, f, tiles_per_stream, tiles, strips;
};

// What the backward pass knows of each token of a group once its gates are done.
struct PreGates {
  float *grad_mix;             // [tokens, F]
  float *grad_mix_transposed;  // [blocks, F, kTokenBlock], zero beyond the last token
  float *of_x;                 // [tokens], the factor of x in grad_x
  double *sums;                // [blocks, F + 3]: grad_bias, grad_alpha
};

struct Kernels {
  // Tokens [begin, end), at most kTokenBlock of them. `phi` is phi * gamma, packed.
  void (*pre_forward)(const PreForward &, const PreLayout &, const float *phi, int64_t begin, int64_t end, void *scratch);
  // The same in three steps, for few tokens: the products of all of them with one strip of phi, into mix[F, step] and
  // squares[step]; then the gates of the tokens [begin, end), at most kTokenBlock of them, from all strips; then the columns
  // [begin, end) of one token's h_in. `begin` is a multiple of kTile. weights: [tokens, N]
  void (*pre_mix_strip)(const PreForward &, const PreLayout &, int64_t strip, float *mix, float *squares, int64_t step,
                        void *scratch);
  void (*pre_finish)(const PreForward &, const PreLayout &, int64_t begin, int64_t end, const float *mixes,
                     const float *squares, int64_t step, float *weights, void *scratch);
  void (*pre_h_in)(const PreForward &, const PreLayout &, int64_t token, int64_t begin, int64_t end, const float *weights);
  int64_t (*pre_forward_scratch)(const PreLayout &);
  // phi * gamma of one tile: [F, kTile], zero beyond the width
  void (*pre_pack)(const PreLayout &, const float *phi, const float *gamma, int64_t tile, float *packed);

  // Tokens [begin, end), at most kTokenBlock of them: block number `block` of the group.
  void (*pre_backward_gates)(const PreBackward &, const PreLayout &, int64_t begin, int64_t end, int64_t block,
                             const PreGates &);
  // All tokens of the group [begin, end), and the tiles [first_tile, last_tile): writes grad_x there, and adds this
  // group's share of grad_mix^T @ x to phi_products[those tiles, F, kTile]. `phi` is that of those tiles, packed.
  void (*pre_backward_tiles)(const PreBackward &, const PreLayout &, const float *phi, int64_t begin, int64_t end,
                             int64_t first_tile, int64_t last_tile, const PreGates &, float *phi_products, bool stream,
                             void *scratch);
  // The sums over all tokens of one tile, in whichever precision they are, become gradients.
  void (*pre_backward_finish)(const PreBackward &, const PreLayout &, int64_t tile, const float *products,
                              const double *totals);
  int64_t (*pre_backward_scratch)();

  void (*post_forward)(const PostForward &, int64_t begin, int64_t end, bool stream);
  void (*post_backward)(const PostBackward &, int64_t begin, int64_t end, bool stream);

  // Any range of tokens; they are taken in groups of as many as there are lanes.
  void (*sinkhorn_forward)(const SinkhornForward &, int64_t begin, int64_t end, void *scratch);
  int64_t (*sinkhorn_forward_scratch)(const SinkhornForward &);
  void (*sinkhorn_backward)(const SinkhornBackward &, int64_t begin, int64_t end, void *scratch);
  int64_t (*sinkhorn_backward_scratch)(const SinkhornBackward &);
};

// Of the best instruction set that this processor has, or of the one that the environment variable MS_MHC_CPU_ISA names
// (baseline, avx2, avx512). Throws std::invalid_argument if that one is not to be had here.
const Kernels &kernels();

// The name of that instruction set, empty where kernels() throws; and all names that may be asked for.
const char *instruction_set();
const char *instruction_sets();

}  // namespace mhc
