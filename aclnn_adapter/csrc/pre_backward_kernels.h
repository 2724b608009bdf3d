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
  const int64_t n = kN ? kN : l.n, f = n * n + 2 * n, d = l.d;
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
      const float s = a.h_pre[token * n + k] - a.hc_eps;
      grad_mix[k] *= s * (1.0f - s);
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
constexpr int kProductRows = 6;
constexpr int kProductVectors = kRegisters == 32 ? 4 : 2;

template <int kRows>
inline void multiply(const float *a, int64_t a_step, const float *b, int64_t count, Vec (&sums)[kRows][kProductVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kProductVectors; ++v) sums[r][v] = Vec{};
  }
  for (int64_t s = 0; s < count; ++s) {
    Vec column[kProductVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kProductVectors; ++v) column[v] = load(b + s * kTile + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = splat(a[s * a_step + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kProductVectors; ++v) sums[r][v] += factor * column[v];
    }
  }
}

// Calls work.template rows<kRows>(first) so that all of `count` rows are covered, kProductRows at a time.
template <typename Work>
inline void by_rows(int64_t count, const Work &work) {
  int64_t r = 0;
  for (; r + kProductRows <= count; r += kProductRows) work.template rows<kProductRows>(r);
  switch (count - r) {
    case 5: return work.template rows<5>(r);
    case 4: return work.template rows<4>(r);
    case 3: return work.template rows<3>(r);
    case 2: return work.template rows<2>(r);
    case 1: return work.template rows<1>(r);
    default: return;
  }
}

// product[F, kTile] += grad_mix^T @ x over the tokens of a block
struct PhiProduct {
  const float *grad_mix;
  int64_t f;
  const float *x;
  int64_t count;
  float *product;

  template <int kRows>
  inline void rows(int64_t k) const {
    for (int c = 0; c < kTile; c += kProductVectors * kLanes) {
      Vec sums[kRows][kProductVectors];
      multiply<kRows>(grad_mix + k, f, x + c, count, sums);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kProductVectors; ++v) {
          float *p = product + (k + r) * kTile + c + v * kLanes;
          store(p, load(p) + sums[r][v]);
        }
      }
    }
  }
};

// grad_x = h_pre * grad_h_in + of_x * x + grad_mix @ (phi * gamma) + grad_x_post over a tile of a block's tokens
template <typename Scalar>
struct XGradient {
  const float *grad_mix_transposed;
  const float *phi;
  int64_t f;
  const float *x;            // [kTokenBlock, kTile]
  const float *of_x;         // [kTokenBlock]
  const float *h_pre;        // of this stream, `n` apart
  int64_t n;
  const Scalar *grad_h_in;   // `d` apart
  int64_t d;
  const Scalar *grad_x_post;  // `nd` apart, or null
  Scalar *grad_x;            // `nd` apart
  int64_t nd, width;
  bool stream_out;

  template <int kRows>
  inline void rows(int64_t t) const {
    for (int c = 0; c < kTile && c < width; c += kProductVectors * kLanes) {
      Vec sums[kRows][kProductVectors];
      multiply<kRows>(grad_mix_transposed + t, kTokenBlock, phi + c, f, sums);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kProductVectors; ++v) finish(t + r, c + v * kLanes, sums[r][v]);
      }
    }
  }

  inline void finish(int64_t t, int64_t c, Vec product) const {
    const int64_t left = width - c;
    if (left <= 0) return;
    Vec grad = h_pre[t * n] * load_up_to(grad_h_in + t * d + c, left) + of_x[t] * load(x + t * kTile + c) + product;
    if (grad_x_post) grad += load_up_to(grad_x_post + t * nd + c, left);
    Scalar *to = grad_x + t * nd + c;
    if (left < kLanes) return store_some(to, grad, left);
    if (stream_out) return stream(to, grad);
    store(to, grad);
  }
};

template <typename Scalar>
void pre_backward_tile(const PreBackward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                       int64_t tile, const PreGates &gates, double *total, bool stream, void *scratch) {
  float *x_tile = static_cast<float *>(scratch);     // [kTokenBlock, kTile]
  float *product = x_tile + kTokenBlock * kTile;     // [F, kTile]
  const int64_t i = l.stream(tile), first = l.first(tile), width = l.width(tile);
  const int64_t column = i * l.d + first;
  const Scalar *x = static_cast<const Scalar *>(a.x);
  const Scalar *grad_x_post = static_cast<const Scalar *>(a.grad_x_post);

  for (int64_t c = 0; c < l.f * kTile; ++c) product[c] = 0;
  for (int64_t token = begin; token < end; token += kTokenBlock) {
    const int64_t count = end - token < kTokenBlock ? end - token : kTokenBlock;
    const int64_t row = token - begin;
    for (int64_t t = 0; t < count; ++t) copy_tile(x + (token + t) * l.nd + column, width, x_tile + t * kTile);
    by_rows(l.f, PhiProduct{gates.grad_mix + row * l.f, l.f, x_tile, count, product});
    by_rows(count, XGradient<Scalar>{gates.grad_mix_transposed + row * l.f, phi + tile * l.f * kTile, l.f, x_tile,
                                     gates.of_x + row, a.h_pre + token * l.n + i, l.n,
                                     static_cast<const Scalar *>(a.grad_h_in) + token * l.d + first, l.d,
                                     grad_x_post ? grad_x_post + token * l.nd + column : nullptr,
                                     static_cast<Scalar *>(a.grad_x) + token * l.nd + column, l.nd, width, stream});
  }
  for (int64_t c = 0; c < l.f * kTile; ++c) total[c] += static_cast<double>(product[c]);
  if (stream) finish_streams();
}

inline int64_t pre_backward_scratch(const PreLayout &l) {
  return (kTokenBlock + l.f) * kTile * static_cast<int64_t>(sizeof(float));
}

}  // namespace MHC_ISA
}  // namespace mhc
