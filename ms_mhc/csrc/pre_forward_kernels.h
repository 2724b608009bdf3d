// SPDX-License-Identifier: Apache-2.0
// MhcPre, forward, on one block of tokens.
#pragma once

#include "kernels.h"
#include "tile.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// The product with phi takes some tokens by some rows of phi at a time: as many sums as there are registers for. A sum is
// kept over one strip (see kernels.h). How tokens and rows are grouped changes no bit of it: every sum of a token and a row
// has a register of its own.
constexpr int kMixTokens = kRegisters == 32 ? 8 : 4;
constexpr int kMixRows = 3;
constexpr int kStrip = kStripTiles * kTile;

// phi of one strip as the product reads it: element (row, tile, c) lies at row * row_step + tile * tile_step + c.
struct PhiStrip {
  const float *data;
  int64_t row_step, tile_step;
};

// mix[row, token] += the products of kRows rows of phi with kTokens tokens, over the tiles of a strip
template <int kTokens, int kRows>
inline void mix_rows(const float *x, const PhiStrip &phi, int64_t tiles, float *mix, int64_t mix_step, Ahead &to_come) {
  constexpr int kCount = (kRows * kTokens + 7) / 8 * 8;  // sum_lanes takes eight
  Ahead ahead = to_come;  // in registers
  Vec sums[kCount] = {};
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int v = 0; v < kTileVectors; ++v) {
      ahead.fetch();
      const float *x_here = x + tile * kTile + v * kLanes;
      const float *phi_here = phi.data + tile * phi.tile_step + v * kLanes;
      Vec rows[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) rows[r] = load(phi_here + r * phi.row_step);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const Vec x_t = load(x_here + t * kStrip);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r * kTokens + t] += x_t * rows[r];
      }
    }
  }
  to_come = ahead;
  float lanes[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; i += 8) sum_lanes(sums + i, lanes + i);
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) mix[r * mix_step + t] += lanes[r * kTokens + t];
  }
}

// All rows, kRows at a time.
template <int kTokens, int kRows>
inline void mix_strip(const float *x, PhiStrip phi, int64_t f, int64_t tiles, float *mix, int64_t mix_step, Ahead ahead) {
  int64_t k = 0;
  const auto next = [&](int rows) {
    k += rows;
    phi.data += rows * phi.row_step;
    mix += rows * mix_step;
  };
  for (; k + kRows <= f; next(kRows)) mix_rows<kTokens, kRows>(x, phi, tiles, mix, mix_step, ahead);
  if constexpr (kRows > kMixRows) {
    for (; k + kMixRows <= f; next(kMixRows)) mix_rows<kTokens, kMixRows>(x, phi, tiles, mix, mix_step, ahead);
  }
  if (f - k == 2) mix_rows<kTokens, 2>(x, phi, tiles, mix, mix_step, ahead);
  if (f - k == 1) mix_rows<kTokens, 1>(x, phi, tiles, mix, mix_step, ahead);
}

// Some tokens of x as fp32 over the tiles of a strip, and the sums of their squares.
template <int kTokens, typename Scalar>
inline void load_strip(const Scalar *x, const PreLayout &l, int64_t first_tile, int64_t tiles, int64_t count, float *strip,
                       float *squares) {
  Vec sums[8] = {};
  for (int64_t t = 0; t < kTokens && t < count; ++t) {
    for (int64_t i = 0; i < tiles; ++i) {
      float *to = strip + t * kStrip + i * kTile;
      copy_tile(x + t * l.nd + l.column(first_tile + i), l.width(first_tile + i), to);
      for (int v = 0; v < kTileVectors; ++v) sums[t] += load(to + v * kLanes) * load(to + v * kLanes);
    }
  }
  sum_lanes(sums, squares);
}

// out = sum_i weights[i] * x[i] over the streams of one token, for the columns [begin, end)
template <int kN, typename Scalar>
inline void weighted_sum(const Scalar *x, const float *weights, int64_t any_n, int64_t d, int64_t begin, int64_t end,
                         Scalar *out) {
  const int64_t n = kN ? kN : any_n;
  int64_t c = begin;
  for (; c + kLanes <= end; c += kLanes) {
    Vec sum = {};
    for (int64_t i = 0; i < n; ++i) sum += weights[i] * load(x + i * d + c);
    store(out + c, sum);
  }
  if (c < end) {
    Vec sum = {};
    for (int64_t i = 0; i < n; ++i) sum += weights[i] * load_some(x + i * d + c, end - c);
    store_some(out + c, sum, end - c);
  }
}

// 1 / (1 + exp(-z)) of `count` numbers, in place; touches up to a multiple of kDoubleLanes of them.
inline void sigmoid(double *z, int64_t count) {
  for (int64_t i = 0; i < count; i += kDoubleLanes) {
    Doubles v;
    std::memcpy(&v, z + i, sizeof v);
    v = 1.0 / (1.0 + exp(-v));
    std::memcpy(z + i, &v, sizeof v);
  }
}

// What one thread needs for up to kTokenBlock tokens.
struct PreForwardScratch {
  PreForwardScratch(const PreLayout &l, void *scratch)
      : gates(static_cast<double *>(scratch)),
        strip(reinterpret_cast<float *>(gates + kTokenBlock * 2 * l.n + kDoubleLanes)),
        mix(strip + kMixTokens * kStrip),
        weights(mix + l.f * kTokenBlock),
        phi(weights + kTokenBlock * l.n) {}

  static int64_t bytes(const PreLayout &l) {
    const int64_t floats = kMixTokens * kStrip + (l.f + l.n) * kTokenBlock + l.f * kStrip;
    const int64_t doubles = kTokenBlock * 2 * l.n + kDoubleLanes;
    return floats * static_cast<int64_t>(sizeof(float)) + doubles * static_cast<int64_t>(sizeof(double));
  }

  double *gates;   // [kTokenBlock, 2N], and room for one vector more
  float *strip;    // [kMixTokens, kStrip]
  float *mix;      // [F, kTokenBlock]
  float *weights;  // [kTokenBlock, N]
  float *phi;      // [F, kStrip], one strip of it packed
};

// From the products with phi and the sums of squares to everything but h_in, whose weights are left in weights[count, N].
template <int kN>
void finish_gates(const PreForward &a, const PreLayout &l, int64_t begin, int64_t count, const float *mix,
                  const double *squares, double *gates, float *weights) {
  const int64_t n = kN ? kN : l.n, f = num_gates(n);
  double inv_rms[kTokenBlock];
  for (int64_t t = 0; t < count; ++t) {
    inv_rms[t] = 1.0 / __builtin_sqrt(squares[t] / static_cast<double>(l.nd) + static_cast<double>(a.norm_eps));
    for (int64_t k = 0; k < 2 * n; ++k) {
      const double u = static_cast<double>(mix[k * kTokenBlock + t]) * inv_rms[t];
      gates[t * 2 * n + k] = u * static_cast<double>(a.alpha[k < n ? 0 : 1]) + static_cast<double>(a.bias[k]);
    }
  }
  for (int64_t i = 0; i < kDoubleLanes; ++i) gates[count * 2 * n + i] = 0;
  sigmoid(gates, count * 2 * n);

  for (int64_t t = 0; t < count; ++t) {
    const int64_t token = begin + t;
    float *weight = weights + t * n;
    for (int64_t k = 0; k < n; ++k) {
      weight[k] = static_cast<float>(gates[t * 2 * n + k] + static_cast<double>(a.hc_eps));
      a.h_post[token * n + k] = static_cast<float>(2.0 * gates[t * 2 * n + n + k]);
    }
    for (int64_t k = 0; k < n * n; ++k) {
      const double u = static_cast<double>(mix[(2 * n + k) * kTokenBlock + t]) * inv_rms[t];
      a.h_res[token * n * n + k] =
          static_cast<float>(u * static_cast<double>(a.alpha[2]) + static_cast<double>(a.bias[2 * n + k]));
    }
    if (a.inv_rms) a.inv_rms[token] = static_cast<float>(inv_rms[t]);
    if (a.h_mix) {
      for (int64_t k = 0; k < f; ++k) a.h_mix[token * f + k] = mix[k * kTokenBlock + t];
    }
    if (a.h_pre) {
      for (int64_t k = 0; k < n; ++k) a.h_pre[token * n + k] = weight[k];
    }
  }
}

// One block of tokens from beginning to end, with phi packed.
template <int kN, typename Scalar>
void pre_forward_block(const PreForward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                       void *scratch) {
  const int64_t n = kN ? kN : l.n, f = num_gates(n), d = l.d, count = end - begin;
  const Scalar *x = static_cast<const Scalar *>(a.x) + begin * l.nd;
  Scalar *h_in = static_cast<Scalar *>(a.h_in) + begin * d;
  const PreForwardScratch mine(l, scratch);

  double squares[kTokenBlock] = {};
  for (int64_t i = 0; i < f * kTokenBlock; ++i) mine.mix[i] = 0;
  for (int64_t i = 0; i < kMixTokens * kStrip; ++i) mine.strip[i] = 0;
  constexpr int64_t kStripBytes = kStrip * static_cast<int64_t>(sizeof(Scalar));
  int64_t offsets[kMixTokens * kStripBytes / kAlignment];
  const int64_t lines = line_offsets(kMixTokens, l.nd * static_cast<int64_t>(sizeof(Scalar)), kStripBytes, offsets);
  for (int64_t tile = 0; tile < l.tiles; tile += kStripTiles) {
    const int64_t tiles = l.strip_tiles(tile);
    const PhiStrip packed{phi + tile * f * kTile, kTile, f * kTile};
    for (int64_t group = 0; group < count; group += kMixTokens) {
      // Beyond the last token the strip holds what it held, and nobody reads the result.
      float square[8];
      load_strip<kMixTokens>(x + group * l.nd, l, tile, tiles, count - group, mine.strip, square);
      for (int64_t t = 0; t < kMixTokens && group + t < count; ++t) squares[group + t] += static_cast<double>(square[t]);
      const bool same_strip = group + kMixTokens < count;
      const int64_t next_tile = tile + kStripTiles;
      const Scalar *next = x + (same_strip ? (group + kMixTokens) * l.nd + l.column(tile)
                                           : next_tile < l.tiles ? l.column(next_tile) : l.nd);
      mix_strip<kMixTokens, kMixRows>(mine.strip, packed, f, tiles, mine.mix + group, kTokenBlock,
                                      Ahead(next, offsets, lines));
    }
  }

  finish_gates<kN>(a, l, begin, count, mine.mix, squares, mine.gates, mine.weights);
  for (int64_t t = 0; t < count; ++t) weighted_sum<kN>(x + t * l.nd, mine.weights + t * n, n, d, 0, d, h_in + t * d);
}

// ---- few tokens: the threads share the columns ----

// The smallest group of tokens that holds `left` of them decides how many rows of phi are taken at a time.
template <typename Work>
inline void with_tokens(int64_t left, const Work &work) {
  if (left == 1) return work(Number<1>{}, Number<8>{});
  if (left == 2) return work(Number<2>{}, Number<6>{});
  if constexpr (kMixTokens == 8) {
    if (left <= 4) return work(Number<4>{}, Number<6>{});
  }
  work(Number<kMixTokens>{}, Number<kMixRows>{});
}

template <typename Scalar>
void pre_mix_strip(const PreForward &a, const PreLayout &l, int64_t strip, float *mix, float *squares, int64_t step,
                   void *scratch) {
  const PreForwardScratch mine(l, scratch);
  const int64_t tile = strip * kStripTiles, tiles = l.strip_tiles(tile), tokens = a.sizes.tokens;
  PhiStrip phi{a.phi + l.column(tile), l.nd, kTile};
  // Read once, phi may stay where it is; read again for every group of tokens, its rows would be in each other's way in
  // the caches, being a power of two apart as often as not.
  const bool in_place = tokens <= kMixTokens && !a.gamma && l.d % kTile == 0;
  if (!in_place) {
    for (int64_t i = 0; i < tiles; ++i) pack_tile(l, a.phi, a.gamma, tile + i, mine.phi + i * l.f * kTile);
    phi = {mine.phi, kTile, l.f * kTile};
  }
  for (int64_t i = 0; i < l.f * step; ++i) mix[i] = 0;
  for (int64_t i = 0; i < kMixTokens * kStrip; ++i) mine.strip[i] = 0;
  const Scalar *x = static_cast<const Scalar *>(a.x);
  for (int64_t group = 0; group < tokens; group += kMixTokens) {
    with_tokens(tokens - group, [&](auto group_tokens, auto rows) {
      float square[8];
      load_strip<group_tokens.value>(x + group * l.nd, l, tile, tiles, tokens - group, mine.strip, square);
      for (int t = 0; t < group_tokens.value; ++t) squares[group + t] = square[t];
      mix_strip<group_tokens.value, rows.value>(mine.strip, phi, l.f, tiles, mix + group, step, Ahead());
    });
  }
}

// Up to kTokenBlock tokens, from what pre_mix_strip left of every strip: mixes[strips, F, step], squares[strips, step].
template <int kN>
void pre_finish(const PreForward &a, const PreLayout &l, int64_t begin, int64_t end, const float *mixes,
                const float *squares, int64_t step, float *weights, void *scratch) {
  const PreForwardScratch mine(l, scratch);
  const int64_t count = end - begin;
  double square[kTokenBlock] = {};
  for (int64_t i = 0; i < l.f * kTokenBlock; ++i) mine.mix[i] = 0;
  for (int64_t strip = 0; strip < l.strips; ++strip) {
    for (int64_t t = 0; t < count; ++t) square[t] += static_cast<double>(squares[strip * step + begin + t]);
    for (int64_t k = 0; k < l.f; ++k) {
      const float *from = mixes + (strip * l.f + k) * step + begin;
      for (int64_t t = 0; t < count; ++t) mine.mix[k * kTokenBlock + t] += from[t];
    }
  }
  finish_gates<kN>(a, l, begin, count, mine.mix, square, mine.gates, weights + begin * l.n);
}

template <int kN, typename Scalar>
void pre_h_in(const PreForward &a, const PreLayout &l, int64_t token, int64_t begin, int64_t end, const float *weights) {
  weighted_sum<kN>(static_cast<const Scalar *>(a.x) + token * l.nd, weights + token * l.n, l.n, l.d, begin, end,
                   static_cast<Scalar *>(a.h_in) + token * l.d);
}

inline int64_t pre_forward_scratch(const PreLayout &l) { return PreForwardScratch::bytes(l); }

}  // namespace MHC_ISA
}  // namespace mhc
