// SPDX-License-Identifier: Apache-2.0
// MhcPre, backward: the gates of one block of tokens, then both products with one tile of columns.
#pragma once

#include "kernels.h"
#include "tile.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// dots[i] = sum over d of grad * x[i], for kN streams
template <int kN, typename Scalar>
inline void stream_dots(const Scalar *grad, const Scalar *x, int64_t d, float *dots) {
  Vec sums[8] = {};
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    const Vec g = load(grad + c);
#pragma GCC unroll 8
    for (int i = 0; i < kN; ++i) sums[i] += g * load(x + i * d + c);
  }
  if (c < d) {
    const Vec g = load_some(grad + c, d - c);
    for (int i = 0; i < kN; ++i) sums[i] += g * load_some(x + i * d + c, d - c);
  }
  float lanes[8];
  sum_lanes(sums, lanes);
  for (int i = 0; i < kN; ++i) dots[i] = lanes[i];
}

template <int kN, typename Scalar>
inline void all_stream_dots(const Scalar *grad, const Scalar *x, int64_t any_n, int64_t d, float *dots) {
  if constexpr (kN != 0) {
    stream_dots<kN>(grad, x, d, dots);
  } else {
    int64_t i = 0;
    for (; i + 4 <= any_n; i += 4) stream_dots<4>(grad, x + i * d, d, dots + i);
    for (; i < any_n; ++i) stream_dots<1>(grad, x + i * d, d, dots + i);
  }
}

template <int kN, typename Scalar>
void pre_backward_gates(const PreBackward &a, const PreLayout &l, int64_t begin, int64_t end, int64_t block,
                        const PreGates &out) {
  const int64_t n = kN ? kN : l.n, f = num_gates(n), d = l.d;
  const Scalar *x = static_cast<const Scalar *>(a.x);
  const Scalar *grad_h_in = static_cast<const Scalar *>(a.grad_h_in);
  double *sums = out.sums + block * (f + 3);
  float *transposed = out.grad_mix_transposed + block * f * kTokenBlock;
  for (int64_t k = 0; k < f + 3; ++k) sums[k] = 0;

  const int64_t first_of_part[4] = {0, n, 2 * n, f};
  for (int64_t token = begin; token < end; ++token) {
    const int64_t row = block * kTokenBlock + token - begin;
    float *grad_mix = out.grad_mix + row * f;
    const float *mix = a.h_mix + token * f;
    const double inv_rms = static_cast<double>(a.inv_rms[token]);

    // the gates' gradients before alpha
    all_stream_dots<kN>(grad_h_in + token * d, x + token * l.nd, n, d, grad_mix);
    for (int64_t k = 0; k < n; ++k) {
      // 1 - s as (1 - h_pre) + hc_eps: near s = 1 the difference of the rounded s would keep few digits
      const float h = a.h_pre[token * n + k];
      grad_mix[k] *= (h - a.hc_eps) * ((1.0f - h) + a.hc_eps);
    }
    for (int64_t k = 0; k < n; ++k) {
      const float h = a.h_post[token * n + k];
      grad_mix[n + k] = a.grad_h_post[token * n + k] * h * (1.0f - 0.5f * h);
    }
    std::memcpy(grad_mix + 2 * n, a.grad_h_res + token * n * n, static_cast<size_t>(n * n) * sizeof(float));

    double grad_inv = 0;
    for (int part = 0; part < 3; ++part) {
      double dot = 0;
      const double alpha = static_cast<double>(a.alpha[part]);
      const float factor = static_cast<float>(alpha * inv_rms);
      for (int64_t k = first_of_part[part]; k < first_of_part[part + 1]; ++k) {
        const double gate = static_cast<double>(grad_mix[k]);
        sums[k] += gate;
        dot += gate * static_cast<double>(mix[k]);
        grad_mix[k] *= factor;
        transposed[k * kTokenBlock + token - begin] = grad_mix[k];
      }
      sums[f + part] += dot * inv_rms;
      grad_inv += dot * alpha;
    }
    out.of_x[row] = static_cast<float>(-grad_inv * inv_rms * inv_rms * inv_rms / static_cast<double>(l.nd));
  }
  for (int64_t k = 0; k < f; ++k) {
    for (int64_t t = end - begin; t < kTokenBlock; ++t) transposed[k * kTokenBlock + t] = 0;
  }
}

// Both products have the form out[r, c] = sum_s a[s, r] * b[s, c] with short rows of a and tiles of b:
// grad_phi over tokens (a = grad_mix, b = x), grad_x over rows of phi (a = grad_mix transposed, b = phi).
// kProductRows by kProductVectors is as many sums as there are registers for.
constexpr int kProductRows = 6;
constexpr int kProductVectors = kRegisters == 32 ? 4 : 2;

// kRows rows of out[., kTile], which are added to (kAdd) or overwritten
template <int kRows, bool kAdd>
void product_rows(const float *a, int64_t a_step, const float *b, int64_t count, float *out, Ahead &to_come) {
  Ahead ahead = to_come;  // in registers
  for (int c = 0; c < kTile; c += kProductVectors * kLanes) {
    Vec sums[kRows][kProductVectors] = {};
    for (int64_t s = 0; s < count; ++s) {
      ahead.fetch();
      Vec column[kProductVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kProductVectors; ++v) column[v] = load(b + s * kTile + c + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec factor = splat(a[s * a_step + r]);
#pragma GCC unroll 8
        for (int v = 0; v < kProductVectors; ++v) sums[r][v] += factor * column[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kProductVectors; ++v) {
        float *to = out + r * kTile + c + v * kLanes;
        store(to, kAdd ? load(to) + sums[r][v] : sums[r][v]);
      }
    }
  }
  to_come = ahead;
}

template <bool kAdd>
void product(int64_t rows, const float *a, int64_t a_step, const float *b, int64_t count, float *out, Ahead ahead) {
  int64_t r = 0;
  for (; r + kProductRows <= rows; r += kProductRows) {
    product_rows<kProductRows, kAdd>(a + r, a_step, b, count, out + r * kTile, ahead);
  }
  a += r;
  out += r * kTile;
  switch (rows - r) {
    case 5: return product_rows<5, kAdd>(a, a_step, b, count, out, ahead);
    case 4: return product_rows<4, kAdd>(a, a_step, b, count, out, ahead);
    case 3: return product_rows<3, kAdd>(a, a_step, b, count, out, ahead);
    case 2: return product_rows<2, kAdd>(a, a_step, b, count, out, ahead);
    case 1: return product_rows<1, kAdd>(a, a_step, b, count, out, ahead);
    default: return;
  }
}

// grad_x = h_pre * grad_h_in + of_x * x + product + grad_x_post over one tile of one token's stream
template <bool kStream, typename Scalar>
inline void finish_grad_x(float h_pre, const Scalar *grad_h_in, float of_x, const float *x, const float *product,
                          const Scalar *grad_x_post, int64_t width, Scalar *grad_x) {
  const auto at = [&](int64_t c, Vec in, Vec post) {
    return h_pre * in + of_x * load(x + c) + load(product + c) + post;
  };
  if (width == kTile) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      const int c = v * kLanes;
      put<kStream>(grad_x + c, at(c, load(grad_h_in + c), grad_x_post ? load(grad_x_post + c) : Vec{}));
    }
    return;
  }
  for (int64_t c = 0; c < width; c += kLanes) {
    const int64_t left = width - c;
    const Vec grad = at(c, load_up_to(grad_h_in + c, left), grad_x_post ? load_up_to(grad_x_post + c, left) : Vec{});
    put_up_to<kStream>(grad_x + c, grad, left);
  }
}

template <bool kStream, typename Scalar>
void pre_backward_tiles(const PreBackward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                        int64_t first_tile, int64_t last_tile, const PreGates &gates, float *phi_products,
                        void *scratch) {
  float *x_tile = static_cast<float *>(scratch);    // [kTokenBlock, kTile]
  float *x_product = x_tile + kTokenBlock * kTile;  // [kTokenBlock, kTile]
  const int64_t tile_size = l.f * kTile;
  const Scalar *x = static_cast<const Scalar *>(a.x);
  const Scalar *grad_h_in = static_cast<const Scalar *>(a.grad_h_in);
  const Scalar *grad_x_post = static_cast<const Scalar *>(a.grad_x_post);
  Scalar *grad_x = static_cast<Scalar *>(a.grad_x);

  constexpr int64_t kTileBytes = kTile * static_cast<int64_t>(sizeof(Scalar));
  int64_t offsets[kTokenBlock * kTileBytes / kAlignment];
  const int64_t lines = line_offsets(kTokenBlock, l.nd * static_cast<int64_t>(sizeof(Scalar)), kTileBytes, offsets);

  for (int64_t token = begin; token < end; token += kTokenBlock) {
    const int64_t count = end - token < kTokenBlock ? end - token : kTokenBlock;
    const int64_t row = token - begin;
    for (int64_t tile = first_tile; tile < last_tile; ++tile) {
      const int64_t i = l.stream(tile), first = l.first(tile), width = l.width(tile);
      const int64_t column = token * l.nd + i * l.d + first;

      // while this tile is multiplied, the next one is fetched
      const bool same_block = tile + 1 < last_tile;
      const int64_t next_tile = same_block ? tile + 1 : first_tile, next_token = same_block ? token : token + kTokenBlock;
      const int64_t next = next_token * l.nd + l.stream(next_tile) * l.d + l.first(next_tile);
      const bool more = next_token < end;

      for (int64_t t = 0; t < count; ++t) copy_tile(x + column + t * l.nd, width, x_tile + t * kTile);
      product<true>(l.f, gates.grad_mix + row * l.f, l.f, x_tile, count, phi_products + (tile - first_tile) * tile_size,
                    more ? Ahead(x + next, offsets, lines) : Ahead());
      product<false>(count, gates.grad_mix_transposed + row * l.f, kTokenBlock, phi + (tile - first_tile) * tile_size, l.f,
                     x_product,
                     more && grad_x_post ? Ahead(grad_x_post + next, offsets, lines) : Ahead());
      for (int64_t t = 0; t < count; ++t) {
        const int64_t at = column + t * l.nd;
        finish_grad_x<kStream>(a.h_pre[(token + t) * l.n + i], grad_h_in + (token + t) * l.d + first, gates.of_x[row + t],
                               x_tile + t * kTile, x_product + t * kTile, grad_x_post ? grad_x_post + at : nullptr, width,
                               grad_x + at);
      }
    }
  }
  if (kStream) finish_streams();
}

template <typename Sum>
void finish_sums(const PreBackward &a, const PreLayout &l, int64_t tile, const Sum *sums) {
  const int64_t column = l.column(tile), width = l.width(tile);
  double grad_gamma[kTile] = {};
  for (int64_t k = 0; k < l.f; ++k) {
    const Sum *sum = sums + k * kTile;
    const float *phi = a.phi + k * l.nd + column;
    float *grad_phi = a.grad_phi + k * l.nd + column;
    if (a.gamma) {
      const float *gamma = a.gamma + column;
      for (int64_t c = 0; c < width; ++c) grad_phi[c] = static_cast<float>(sum[c] * static_cast<Sum>(gamma[c]));
    } else {
      for (int64_t c = 0; c < width; ++c) grad_phi[c] = static_cast<float>(sum[c]);
    }
    if (!a.grad_gamma) continue;
    for (int64_t c = 0; c < width; ++c) grad_gamma[c] += static_cast<double>(sum[c]) * static_cast<double>(phi[c]);
  }
  if (!a.grad_gamma) return;
  for (int64_t c = 0; c < width; ++c) a.grad_gamma[column + c] = static_cast<float>(grad_gamma[c]);
}

inline void pre_backward_finish(const PreBackward &a, const PreLayout &l, int64_t tile, const float *products,
                                const double *totals) {
  if (products) finish_sums(a, l, tile, products);
  else finish_sums(a, l, tile, totals);
}

inline int64_t pre_backward_scratch() { return 2 * kTokenBlock * kTile * static_cast<int64_t>(sizeof(float)); }

}  // namespace MHC_ISA
}  // namespace mhc
