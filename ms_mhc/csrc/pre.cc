// SPDX-License-Identifier: Apache-2.0
// MhcPre, alone and with Sinkhorn behind it: what the threads share. Forward goes by blocks of tokens or, when these are
// few, by strips of columns; a token's result has the same bits either way. Backward goes by groups of tokens small enough
// to stay in the caches: first every block's gates, then every tile of columns, each over all tokens of the group. A tile
// belongs to one thread at a time, and its sums over tokens run in the order of the tokens, in steps that do not depend
// on the group, so that grad_phi and its kin have the same bits for any number of threads.
#include <algorithm>
#include <atomic>

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

// So many tokens are few: every strip of phi is read once for all of them.
constexpr int64_t kFewTokens = 2 * kTokenBlock;

int backward_threads(const Sizes &sizes) {
  const int64_t blocks = (sizes.tokens + kTokenBlock - 1) / kTokenBlock;
  return threads_for(std::max(PreLayout(sizes).tiles, blocks));
}

int64_t group_size(const PreBackward &a, const PreLayout &l, int threads) {
  int64_t group = 2 * kTokenBlock;  // fewer would spend the time on phi and the sums
  while (group < kTokensInFloat && 2 * group * l.nd * bytes_of(a.element) <= kGroupBytes * threads) group *= 2;
  return group;
}

// Tiles that one thread takes at a time: a run of columns, so that rows are read and written in longer pieces, but
// enough of them to keep all threads busy. The result does not depend on it.
int64_t tile_span(const PreLayout &l, int threads) { return std::clamp<int64_t>(l.tiles / (4 * threads), 1, 8); }

// Sinkhorn on the logits of some tokens, in their place.
void mix_in_place(const SinkhornForward &sinkhorn, int64_t begin, int64_t end, void *scratch) {
  const int64_t nn = sinkhorn.sizes.streams * sinkhorn.sizes.streams;
  SinkhornForward part = sinkhorn;
  part.x = part.output = sinkhorn.output + begin * nn;
  kernels().sinkhorn_forward(part, 0, end - begin, scratch);
}

void forward_by_blocks(const PreForward &args, const PreLayout &layout, const SinkhornForward *sinkhorn) {
  const Kernels &run = kernels();
  const int64_t tokens = args.sizes.tokens, blocks = (tokens + kTokenBlock - 1) / kTokenBlock;
  const int count = threads_for(blocks);
  const Buffer<float> phi(layout.packed_size());
  const ThreadScratch scratch(run.pre_forward_scratch(layout), count);
  const ThreadScratch sinkhorn_scratch(sinkhorn ? run.sinkhorn_forward_scratch(*sinkhorn) : 0, count);
  Threads threads(count);
  threads.run([&] {
    threads.share(layout.tiles, [&](int64_t tile) {
      run.pre_pack(layout, args.phi, args.gamma, tile, phi.get() + tile * layout.f * kTile);
    });
    threads.share_as_they_come(blocks, [&](int64_t block) {
      const int64_t begin = block * kTokenBlock, end = std::min(begin + kTokenBlock, tokens);
      run.pre_forward(args, layout, phi.get(), begin, end, scratch.of(this_thread()));
      if (sinkhorn) mix_in_place(*sinkhorn, begin, end, sinkhorn_scratch.of(this_thread()));
    });
  });
}

void forward_by_strips(const PreForward &args, const PreLayout &layout, const SinkhornForward *sinkhorn) {
  // Tokens whose gates, and columns whose h_in, one thread takes. Of no more tokens than that, the thread that ends the
  // last strip does the rest alone: waiting for one another would cost more.
  constexpr int64_t kTogether = 8, kColumns = 1024;
  const Kernels &run = kernels();
  const int64_t tokens = args.sizes.tokens, step = rounded_up(tokens, kTogether);
  const int64_t parts = (layout.d + kColumns - 1) / kColumns;
  const int count = threads_for(layout.strips);
  const Buffer<float> mixes(layout.strips * layout.f * step), squares(layout.strips * step), weights(step * layout.n);
  const ThreadScratch scratch(run.pre_forward_scratch(layout), count);
  const ThreadScratch sinkhorn_scratch(sinkhorn ? run.sinkhorn_forward_scratch(*sinkhorn) : 0, count);
  const auto mix = [&](int64_t strip) {
    run.pre_mix_strip(args, layout, strip, mixes.get() + strip * layout.f * step, squares.get() + strip * step, step,
                      scratch.of(this_thread()));
  };
  const auto finish = [&](int64_t i) {
    const int64_t begin = i * kTogether, end = std::min(begin + kTogether, tokens);
    run.pre_finish(args, layout, begin, end, mixes.get(), squares.get(), step, weights.get(), scratch.of(this_thread()));
    if (sinkhorn) mix_in_place(*sinkhorn, begin, end, sinkhorn_scratch.of(this_thread()));
  };
  const auto collect = [&](int64_t i) {
    const int64_t first = i % parts * kColumns;
    run.pre_h_in(args, layout, i / parts, first, std::min(first + kColumns, layout.d), weights.get());
  };
  Threads threads(count);
  std::atomic<int64_t> left{layout.strips};
  threads.run([&] {
    threads.share_as_they_come(layout.strips, [&](int64_t strip) {
      mix(strip);
      if (left.fetch_sub(1) > 1 || tokens > kTogether) return;
      finish(0);
      for (int64_t i = 0; i < tokens * parts; ++i) collect(i);
    });
    if (tokens <= kTogether) return;
    threads.share(step / kTogether, finish);
    threads.share(tokens * parts, collect);
  });
}

// sinkhorn: unless null, what is to be done to h_res, in its place.
void forward(const PreForward &args, const SinkhornForward *sinkhorn) {
  const PreLayout layout(args.sizes);
  if (args.sizes.tokens == 0) return;
  const auto run = args.sizes.tokens <= kFewTokens ? forward_by_strips : forward_by_blocks;
  run(args, layout, sinkhorn);
}

// The gradient of the logits of the tokens [begin, end), from that of the mixed matrices.
void unmix(const PreSinkhornBackward &args, int64_t begin, int64_t end, float *logits, void *scratch, float *grad_logits) {
  const PreBackward &pre = args.pre;
  const int64_t n = pre.sizes.streams, nn = n * n, f = nn + 2 * n;
  for (int64_t t = begin; t < end; ++t) {
    const double factor = static_cast<double>(pre.alpha[2]) * static_cast<double>(pre.inv_rms[t]);
    for (int64_t k = 2 * n; k < f; ++k) {
      const double logit = static_cast<double>(pre.h_mix[t * f + k]) * factor + static_cast<double>(args.bias[k]);
      logits[(t - begin) * nn + k - 2 * n] = static_cast<float>(logit);
    }
  }
  const SinkhornBackward back{{end - begin, n, 0}, logits,         pre.grad_h_res + begin * nn, args.eps,
                              args.num_iters,      args.recipe, grad_logits + begin * nn};
  kernels().sinkhorn_backward(back, 0, end - begin, scratch);
}

// Both products of one group of tokens, when that is all of them: a tile is packed, used and finished at once.
void only_group(const PreBackward &args, const PreLayout &layout, Threads &threads, int64_t span, const PreGates &gates,
                bool stream, const ThreadScratch &scratch, const ThreadScratch &tiles) {
  const Kernels &run = kernels();
  const int64_t tile_size = layout.f * kTile;
  threads.share_as_they_come((layout.tiles + span - 1) / span, [&](int64_t i) {
    const int64_t first = i * span, last = std::min(first + span, layout.tiles);
    float *products = static_cast<float *>(tiles.of(this_thread())), *phi = products + span * tile_size;
    std::fill_n(products, span * tile_size, 0.0f);
    for (int64_t tile = first; tile < last; ++tile) {
      run.pre_pack(layout, args.phi, args.gamma, tile, phi + (tile - first) * tile_size);
    }
    run.pre_backward_tiles(args, layout, phi, 0, args.sizes.tokens, first, last, gates, products, stream,
                           scratch.of(this_thread()));
    for (int64_t tile = first; tile < last; ++tile) {
      run.pre_backward_finish(args, layout, tile, products + (tile - first) * tile_size, nullptr);
    }
  });
}

// before_gates(begin, end) is called for every block of tokens before args.grad_h_res is read there.
template <typename Before>
void backward(const PreBackward &args, const Before &before_gates) {
  const PreLayout layout(args.sizes);
  const Kernels &run = kernels();
  const int64_t tokens = args.sizes.tokens, f = layout.f, tile_size = f * kTile;
  const int count = backward_threads(args.sizes);
  const int64_t group = group_size(args, layout, count), span = tile_span(layout, count);
  const bool stream = past_caches(args.grad_x, tokens * layout.n, layout.d * bytes_of(args.element));
  const bool one_group = tokens <= group;

  const int64_t packed = one_group ? 0 : layout.packed_size();
  const Buffer<float> phi(packed), products(packed);
  const Buffer<double> totals(packed);
  const int64_t kept = one_group ? span * tile_size : 0;
  const ThreadScratch tiles(kept * static_cast<int64_t>(2 * sizeof(float)), count);
  const Buffer<float> grad_mix(group * f), transposed(group * f), of_x(group);
  const Buffer<double> block_sums(group / kTokenBlock * (f + 3)), sums(f + 3);
  const PreGates gates{grad_mix.get(), transposed.get(), of_x.get(), block_sums.get()};
  const ThreadScratch scratch(run.pre_backward_scratch(), count);
  std::fill(sums.get(), sums.get() + f + 3, 0.0);

  Threads threads(count);
  const auto all_gates = [&](int64_t first, int64_t last) {
    const int64_t blocks = (last - first + kTokenBlock - 1) / kTokenBlock;
    threads.share_as_they_come(blocks, [&](int64_t block) {
      const int64_t begin = first + block * kTokenBlock, end = std::min(begin + kTokenBlock, last);
      before_gates(begin, end);
      run.pre_backward_gates(args, layout, begin, end, block, gates);
    });
    threads.one_of_them([&] {
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t k = 0; k < f + 3; ++k) sums.get()[k] += gates.sums[block * (f + 3) + k];
      }
    });
  };
  threads.run([&] {
    if (one_group) {
      all_gates(0, tokens);
      only_group(args, layout, threads, span, gates, stream, scratch, tiles);
      return;
    }
    threads.share(layout.tiles, [&](int64_t tile) {
      run.pre_pack(layout, args.phi, args.gamma, tile, phi.get() + tile * tile_size);
      std::fill_n(products.get() + tile * tile_size, tile_size, 0.0f);
      std::fill_n(totals.get() + tile * tile_size, tile_size, 0.0);
    });
    for (int64_t first = 0; first < tokens; first += group) {
      const int64_t last = std::min(first + group, tokens);
      all_gates(first, last);
      const bool to_double = last % kTokensInFloat == 0 || last == tokens;
      threads.share_as_they_come((layout.tiles + span - 1) / span, [&](int64_t i) {
        const int64_t tile = i * span, end = std::min(tile + span, layout.tiles);
        float *products_here = products.get() + tile * tile_size;
        run.pre_backward_tiles(args, layout, phi.get() + tile * tile_size, first, last, tile, end, gates, products_here,
                               stream, scratch.of(this_thread()));
        if (!to_double) return;
        for (int64_t c = tile * tile_size; c < end * tile_size; ++c) {
          totals.get()[c] += static_cast<double>(products.get()[c]);
          products.get()[c] = 0.0f;
        }
      });
    }
    threads.share(layout.tiles, [&](int64_t tile) {
      run.pre_backward_finish(args, layout, tile, nullptr, totals.get() + tile * tile_size);
    });
  });
  for (int64_t k = 0; k < f; ++k) args.grad_bias[k] = static_cast<float>(sums.get()[k]);
  for (int64_t i = 0; i < 3; ++i) args.grad_alpha[i] = static_cast<float>(sums.get()[f + i]);
}

}  // namespace

void pre_forward(const PreForward &args) { forward(args, nullptr); }

void pre_sinkhorn_forward(const PreSinkhornForward &args) {
  const SinkhornForward sinkhorn{args.pre.sizes, nullptr, args.eps, args.num_iters, args.recipe, args.pre.h_res};
  forward(args.pre, &sinkhorn);
}

void pre_backward(const PreBackward &args) {
  backward(args, [](int64_t, int64_t) {});
}

void pre_sinkhorn_backward(const PreSinkhornBackward &args) {
  const Sizes &sizes = args.pre.sizes;
  const int64_t nn = sizes.streams * sizes.streams;
  const int count = backward_threads(sizes);
  const SinkhornBackward any{sizes, nullptr, nullptr, args.eps, args.num_iters, args.recipe, nullptr};
  const ThreadScratch logits(kTokenBlock * nn * static_cast<int64_t>(sizeof(float)), count);
  const ThreadScratch scratch(kernels().sinkhorn_backward_scratch(any), count);
  const Buffer<float> grad_logits(sizes.tokens * nn);
  PreBackward pre = args.pre;
  pre.grad_h_res = grad_logits.get();
  backward(pre, [&](int64_t begin, int64_t end) {
    const int thread = this_thread();
    unmix(args, begin, end, static_cast<float *>(logits.of(thread)), scratch.of(thread), grad_logits.get());
  });
}

}  // namespace mhc
