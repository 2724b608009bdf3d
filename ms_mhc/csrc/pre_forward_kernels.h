// SPDX-License-Identifier: Apache-2.0
// MhcPre, forward, on one block of tokens.
#pragma once

#include "kernels.h"
#include "tile.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// The product with phi takes kMixTokens tokens by kMixRows rows of phi at a time: as many sums as there are registers
// for. A strip is the run of tiles that these sums are kept over; it is short enough for its part of x to stay in the
// innermost cache.
constexpr int kMixTokens = kRegisters == 32 ? 8 : 4;
constexpr int kMixRows = 3;
constexpr int kStripTiles = 8;
constexpr int kStrip = kStripTiles * kTile;

// mix[row, token] += the products of kRows rows of phi with kMixTokens tokens, over the tiles of a strip
template <int kRows>
inline void mix_rows(const float *x, const float *phi, int64_t tile_step, int64_t tiles, float *mix, Ahead &to_come) {
  Ahead ahead = to_come;  // in registers
  Vec sums[kRows][8] = {};  // sum_lanes takes eight
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int v = 0; v < kTileVectors; ++v) {
      ahead.fetch();
      const float *x_here = x + tile * kTile + v * kLanes;
      const float *phi_here = phi + tile * tile_step + v * kLanes;
      Vec rows[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) rows[r] = load(phi_here + r * kTile);
#pragma GCC unroll 8
      for (int t = 0; t < kMixTokens; ++t) {
        const Vec x_t = load(x_here + t * kStrip);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r][t] += x_t * rows[r];
      }
    }
  }
  to_come = ahead;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float lanes[8];
    sum_lanes(sums[r], lanes);
    for (int t = 0; t < kMixTokens; ++t) mix[r * kTokenBlock + t] += lanes[t];
  }
}

inline void mix_strip(const float *x, const float *phi, int64_t f, int64_t tiles, float *mix, Ahead ahead) {
  int64_t k = 0;
  for (; k + kMixRows <= f; k += kMixRows) {
    mix_rows<kMixRows>(x, phi + k * kTile, f * kTile, tiles, mix + k * kTokenBlock, ahead);
  }
  if (f - k == 2) mix_rows<2>(x, phi + k * kTile, f * kTile, tiles, mix + k * kTokenBlock, ahead);
  if (f - k == 1) mix_rows<1>(x, phi + k * kTile, f * kTile, tiles, mix + k * kTokenBlock, ahead);
}

// out = sum_i weights[i] * x[i] over the streams of one token
template <int kN, typename Scalar>
inline void weighted_sum(const Scalar *x, const float *weights, int64_t any_n, int64_t d, Scalar *out) {
  const int64_t n = kN ? kN : any_n;
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    Vec sum = {};
    for (int64_t i = 0; i < n; ++i) sum += weights[i] * load(x + i * d + c);
    store(out + c, sum);
  }
  if (c < d) {
    Vec sum = {};
    for (int64_t i = 0; i < n; ++i) sum += weights[i] * load_some(x + i * d + c, d - c);
    store_some(out + c, sum, d - c);
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

template <int kN, typename Scalar>
void pre_forward_block(const PreForward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                       void *scratch) {
  const int64_t n = kN ? kN : l.n, f = n * n + 2 * n, d = l.d, count = end - begin;
  const Scalar *x = static_cast<const Scalar *>(a.x) + begin * l.nd;
  Scalar *h_in = static_cast<Scalar *>(a.h_in) + begin * d;

  float *strip = static_cast<float *>(scratch);                         // [kMixTokens, kStrip]
  float *mix = strip + kMixTokens * kStrip;                             // [F, kTokenBlock]
  double *gates = reinterpret_cast<double *>(mix + f * kTokenBlock);    // [kTokenBlock, 2N]
  float *weights = reinterpret_cast<float *>(gates + kTokenBlock * 2 * n + kDoubleLanes);  // [N]

  double squares[kTokenBlock] = {};
  for (int64_t i = 0; i < f * kTokenBlock; ++i) mix[i] = 0;
  for (int64_t i = 0; i < kMixTokens * kStrip; ++i) strip[i] = 0;
  const auto column = [&](int64_t tile) { return tile < l.tiles ? l.stream(tile) * d + l.first(tile) : l.nd; };
  constexpr int64_t kStripBytes = kStrip * static_cast<int64_t>(sizeof(Scalar));
  int64_t offsets[kMixTokens * kStripBytes / kAlignment];
  const int64_t lines = line_offsets(kMixTokens, l.nd * static_cast<int64_t>(sizeof(Scalar)), kStripBytes, offsets);
  for (int64_t tile = 0; tile < l.tiles; tile += kStripTiles) {
    const int64_t tiles = l.tiles - tile < kStripTiles ? l.tiles - tile : kStripTiles;
    for (int64_t group = 0; group < count; group += kMixTokens) {
      // Beyond the last token the strip holds what it held, and nobody reads the result.
      Vec square[8] = {};
      for (int64_t t = 0; t < kMixTokens && group + t < count; ++t) {
        for (int64_t i = 0; i < tiles; ++i) {
          float *to = strip + t * kStrip + i * kTile;
          copy_tile(x + (group + t) * l.nd + column(tile + i), l.width(tile + i), to);
          for (int v = 0; v < kTileVectors; ++v) square[t] += load(to + v * kLanes) * load(to + v * kLanes);
        }
      }
      float lanes[8];
      sum_lanes(square, lanes);
      for (int64_t t = 0; t < kMixTokens && group + t < count; ++t) squares[group + t] += static_cast<double>(lanes[t]);
      const bool same_strip = group + kMixTokens < count;
      const Scalar *next = x + (same_strip ? (group + kMixTokens) * l.nd + column(tile) : column(tile + kStripTiles));
      mix_strip(strip, phi + tile * f * kTile, f, tiles, mix + group, Ahead(next, offsets, lines));
    }
  }

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
    for (int64_t k = 0; k < n; ++k) {
      weights[k] = static_cast<float>(gates[t * 2 * n + k] + static_cast<double>(a.hc_eps));
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
      for (int64_t k = 0; k < n; ++k) a.h_pre[token * n + k] = weights[k];
    }
    weighted_sum<kN>(x + t * l.nd, weights, n, d, h_in + t * d);
  }
}

inline int64_t pre_forward_scratch(const PreLayout &l) {
  const int64_t floats = kMixTokens * kStrip + l.f * kTokenBlock + l.n;
  const int64_t doubles = kTokenBlock * 2 * l.n + kDoubleLanes;
  return floats * static_cast<int64_t>(sizeof(float)) + doubles * static_cast<int64_t>(sizeof(double));
}

}  // namespace MHC_ISA
}  // namespace mhc
