// SPDX-License-Identifier: Apache-2.0
// MhcPre: what the threads share. Forward goes by blocks of tokens. Backward goes by groups of tokens small enough to
// stay in the caches: first every block's gates, then every tile of columns, each over all tokens of the group. A tile
// belongs to one thread at a time, and its sums over tokens run in the order of the tokens, in steps that do not depend
// on the group, so that grad_phi and its kin have the same bits for any number of threads.
#include <algorithm>

#include "element.h"
#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace mhc {
namespace {

// Of x, in one group of the backward pass, for each thread: half a megabyte stays in the second-level cache.
constexpr int64_t kGroupBytes = 512 << 10;

// Products of so many tokens are summed in fp32, their sums in double. Groups divide it.
constexpr int64_t kTokensInFloat = 1024;

// phi * gamma by tiles (see PreLayout)
void pack(const PreLayout &l, const float *phi, const float *gamma, int64_t tile, float *packed) {
  const int64_t column = l.stream(tile) * l.d + l.first(tile), width = l.width(tile);
  for (int64_t k = 0; k < l.f; ++k) {
    const float *from = phi + k * l.nd + column;
    float *to = packed + (tile * l.f + k) * kTile;
    for (int64_t c = 0; c < width; ++c) to[c] = gamma ? from[c] * gamma[column + c] : from[c];
    std::fill(to + width, to + kTile, 0.0f);
  }
}

int64_t group_size(const PreBackward &a, const PreLayout &l, int threads) {
  int64_t group = kTokenBlock;
  while (group < kTokensInFloat && 2 * group * l.nd * bytes_of(a.element) <= kGroupBytes * threads) group *= 2;
  return group;
}

// Tiles that one thread takes at a time: a run of columns, so that rows are read and written in longer pieces, but
// enough of them to keep all threads busy. The result does not depend on it.
int64_t tile_span(const PreLayout &l, int threads) { return std::clamp<int64_t>(l.tiles / (4 * threads), 1, 8); }

// The sums over tokens become gradients, one tile of columns at a time.
void finish_tile(const PreBackward &a, const PreLayout &l, int64_t tile, const double *total) {
  const int64_t column = l.stream(tile) * l.d + l.first(tile);
  for (int64_t c = 0; c < l.width(tile); ++c) {
    double grad_gamma = 0;
    for (int64_t k = 0; k < l.f; ++k) {
      const double product = total[k * kTile + c];
      const int64_t at = k * l.nd + column + c;
      a.grad_phi[at] = static_cast<float>(a.gamma ? product * static_cast<double>(a.gamma[column + c]) : product);
      grad_gamma += product * static_cast<double>(a.phi[at]);
    }
    if (a.grad_gamma) a.grad_gamma[column + c] = static_cast<float>(grad_gamma);
  }
}

}  // namespace

void pre_forward(const PreForward &args) {
  const PreLayout layout(args.sizes);
  if (args.sizes.tokens == 0 || layout.nd == 0) return;
  const Kernels &run = kernels();
  const int64_t blocks = (args.sizes.tokens + kTokenBlock - 1) / kTokenBlock;
  const int threads = threads_for(blocks);
  const Buffer<float> phi(layout.packed_size());
  const ThreadScratch scratch(run.pre_forward_scratch(layout), threads);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t tile = 0; tile < layout.tiles; ++tile) pack(layout, args.phi, args.gamma, tile, phi.get());
#pragma omp for schedule(dynamic)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kTokenBlock, end = std::min(begin + kTokenBlock, args.sizes.tokens);
      run.pre_forward(args, layout, phi.get(), begin, end, scratch.of(this_thread()));
    }
  }
}

void pre_backward(const PreBackward &args) {
  const PreLayout layout(args.sizes);
  const Kernels &run = kernels();
  const int64_t tokens = args.sizes.tokens, f = layout.f, tile_size = f * kTile;
  const int threads = threads_for(std::max(layout.tiles, rounded_up(tokens, kTokenBlock) / kTokenBlock));
  const int64_t group = group_size(args, layout, threads), span = tile_span(layout, threads);
  const bool stream = past_caches(args.grad_x, tokens * layout.n, layout.d * bytes_of(args.element));

  const Buffer<float> phi(layout.packed_size()), products(layout.packed_size());
  const Buffer<double> totals(layout.packed_size());
  const Buffer<float> grad_mix(group * f), transposed(group * f), of_x(group);
  const Buffer<double> block_sums(group / kTokenBlock * (f + 3)), sums(f + 3);
  const PreGates gates{grad_mix.get(), transposed.get(), of_x.get(), block_sums.get()};
  const ThreadScratch scratch(run.pre_backward_scratch(), threads);
  std::fill(sums.get(), sums.get() + f + 3, 0.0);

#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t tile = 0; tile < layout.tiles; ++tile) {
      pack(layout, args.phi, args.gamma, tile, phi.get());
      std::fill_n(products.get() + tile * tile_size, tile_size, 0.0f);
      std::fill_n(totals.get() + tile * tile_size, tile_size, 0.0);
    }
    for (int64_t first = 0; first < tokens; first += group) {
      const int64_t last = std::min(first + group, tokens);
      const int64_t blocks = (last - first + kTokenBlock - 1) / kTokenBlock;
#pragma omp for schedule(dynamic)
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = first + block * kTokenBlock, end = std::min(begin + kTokenBlock, last);
        run.pre_backward_gates(args, layout, begin, end, block, gates);
      }
#pragma omp single nowait
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t k = 0; k < f + 3; ++k) sums.get()[k] += gates.sums[block * (f + 3) + k];
      }
      const bool to_double = last % kTokensInFloat == 0 || last == tokens;
#pragma omp for schedule(dynamic)
      for (int64_t tile = 0; tile < layout.tiles; tile += span) {
        const int64_t end = std::min(tile + span, layout.tiles);
        run.pre_backward_tiles(args, layout, phi.get(), first, last, tile, end, gates, products.get(), stream,
                               scratch.of(this_thread()));
        if (to_double) {
          for (int64_t c = tile * tile_size; c < end * tile_size; ++c) {
            totals.get()[c] += static_cast<double>(products.get()[c]);
            products.get()[c] = 0.0f;
          }
        }
      }
    }
#pragma omp for schedule(static)
    for (int64_t tile = 0; tile < layout.tiles; ++tile) {
      finish_tile(args, layout, tile, totals.get() + tile * tile_size);
    }
  }
  for (int64_t k = 0; k < f; ++k) args.grad_bias[k] = static_cast<float>(sums.get()[k]);
  for (int64_t i = 0; i < 3; ++i) args.grad_alpha[i] = static_cast<float>(sums.get()[f + i]);
}

}  // namespace mhc
