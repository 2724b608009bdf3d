// SPDX-License-Identifier: Apache-2.0
// MhcPost on a range of tokens, forward and backward.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// A row is taken by full vectors, then what is left of it: the work is written once, against one of these.

struct FullVector {
  template <typename Scalar>
  Vec get(const Scalar *p) const {
    return load(p);
  }
  template <bool kStream, typename Scalar>
  void put(Scalar *p, Vec v) const {
    MHC_ISA::put<kStream>(p, v);
  }
};

struct RestOfRow {
  int64_t count;

  template <typename Scalar>
  Vec get(const Scalar *p) const {
    return load_some(p, count);
  }
  template <bool kStream, typename Scalar>
  void put(Scalar *p, Vec v) const {
    store_some(p, v, count);
  }
};

template <typename Work>
inline void by_columns(int64_t d, const Work &work) {
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) work(c, FullVector{});
  if (c < d) work(c, RestOfRow{d - c});
}

template <int kN, bool kStream, typename Scalar>
void post_forward_tokens(const PostForward &a, int64_t begin, int64_t end) {
  const int64_t n = kN ? kN : a.sizes.streams, d = a.sizes.hidden;
  for (int64_t t = begin; t < end; ++t) {
    const Scalar *x = static_cast<const Scalar *>(a.x) + t * n * d;
    const Scalar *h_out = static_cast<const Scalar *>(a.h_out) + t * d;
    Scalar *out = static_cast<Scalar *>(a.out) + t * n * d;
    const float *h_post = a.h_post + t * n;
    const float *h_res = a.h_res ? a.h_res + t * n * n : nullptr;
    by_columns(d, [&](int64_t c, auto part) {
      const Vec h = part.get(h_out + c);
      if (!h_res) {
        for (int64_t j = 0; j < n; ++j) part.template put<kStream>(out + j * d + c, h_post[j] * h + part.get(x + j * d + c));
      } else if constexpr (kN != 0) {
        Vec streams[kN];
#pragma GCC unroll 8
        for (int i = 0; i < kN; ++i) streams[i] = part.get(x + i * d + c);
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) {
          Vec sum = h_post[j] * h;
#pragma GCC unroll 8
          for (int i = 0; i < kN; ++i) sum += h_res[i * kN + j] * streams[i];
          part.template put<kStream>(out + j * d + c, sum);
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          Vec sum = h_post[j] * h;
          for (int64_t i = 0; i < n; ++i) sum += h_res[i * n + j] * part.get(x + i * d + c);
          part.template put<kStream>(out + j * d + c, sum);
        }
      }
    });
  }
  if (kStream) finish_streams();
}

// to[r][j] = sum over d of x[r] * grad[j], for kRows rows and kColumns columns: as many sums as there are registers for
template <int kRows, int kColumns, typename Scalar>
inline void dots(const Scalar *const *x, const Scalar *grad, int64_t d, float *const *to) {
  constexpr int kCount = (kRows * kColumns + 7) / 8 * 8;  // sum_lanes takes eight
  Vec sums[kCount] = {};
  by_columns(d, [&](int64_t c, auto part) {
    Vec g[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) g[j] = part.get(grad + j * d + c);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x_r = part.get(x[r] + c);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) sums[r * kColumns + j] += x_r * g[j];
    }
  });
  float lanes[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; i += 8) sum_lanes(sums + i, lanes + i);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) to[r][j] = lanes[r * kColumns + j];
  }
}

constexpr int kDotRows = kRegisters == 32 ? 5 : 2;

// The rows of x, and h_out as one more, against kColumns streams of grad from stream j on.
template <int kColumns, typename Scalar>
inline void dot_columns(const Scalar *x, const Scalar *h_out, const Scalar *grad, int64_t n, int64_t d, int64_t j,
                        float *grad_h_res, float *grad_h_post) {
  const Scalar *rows[kDotRows];
  float *to[kDotRows];
  for (int64_t r = grad_h_res ? 0 : n; r <= n;) {
    int count = 0;
    for (; count < kDotRows && r <= n; ++count, ++r) {
      rows[count] = r == n ? h_out : x + r * d;
      to[count] = (r == n ? grad_h_post : grad_h_res + r * n) + j;
    }
    switch (count) {
      case 1: dots<1, kColumns>(rows, grad + j * d, d, to); break;
      case 2: dots<2, kColumns>(rows, grad + j * d, d, to); break;
      default:
        if constexpr (kDotRows == 5) {
          if (count == 3) dots<3, kColumns>(rows, grad + j * d, d, to);
          if (count == 4) dots<4, kColumns>(rows, grad + j * d, d, to);
          if (count == 5) dots<5, kColumns>(rows, grad + j * d, d, to);
        }
    }
  }
}

template <int kN, bool kStream, typename Scalar>
void post_backward_tokens(const PostBackward &a, int64_t begin, int64_t end) {
  const int64_t n = kN ? kN : a.sizes.streams, d = a.sizes.hidden;
  for (int64_t t = begin; t < end; ++t) {
    const Scalar *x = static_cast<const Scalar *>(a.x) + t * n * d;
    const Scalar *grad = static_cast<const Scalar *>(a.grad_output) + t * n * d;
    const Scalar *h_out = static_cast<const Scalar *>(a.h_out) + t * d;
    Scalar *grad_x = static_cast<Scalar *>(a.grad_x) + t * n * d;
    Scalar *grad_h_out = static_cast<Scalar *>(a.grad_h_out) + t * d;
    const float *h_post = a.h_post + t * n;
    const float *h_res = a.h_res ? a.h_res + t * n * n : nullptr;
    by_columns(d, [&](int64_t c, auto part) {
      if constexpr (kN != 0) {
        Vec streams[kN];
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) streams[j] = part.get(grad + j * d + c);
        Vec sum = {};
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) sum += h_post[j] * streams[j];
        part.template put<kStream>(grad_h_out + c, sum);
#pragma GCC unroll 8
        for (int i = 0; i < kN; ++i) {
          sum = h_res ? Vec{} : streams[i];
          if (h_res) {
#pragma GCC unroll 8
            for (int j = 0; j < kN; ++j) sum += h_res[i * kN + j] * streams[j];
          }
          part.template put<kStream>(grad_x + i * d + c, sum);
        }
      } else {
        Vec sum = {};
        for (int64_t j = 0; j < n; ++j) sum += h_post[j] * part.get(grad + j * d + c);
        part.template put<kStream>(grad_h_out + c, sum);
        for (int64_t i = 0; i < n; ++i) {
          sum = h_res ? Vec{} : part.get(grad + i * d + c);
          for (int64_t j = 0; h_res && j < n; ++j) sum += h_res[i * n + j] * part.get(grad + j * d + c);
          part.template put<kStream>(grad_x + i * d + c, sum);
        }
      }
    });
    float *grad_h_res = a.grad_h_res ? a.grad_h_res + t * n * n : nullptr;
    float *grad_h_post = a.grad_h_post + t * n;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) dot_columns<4>(x, h_out, grad, n, d, j, grad_h_res, grad_h_post);
    for (; j + 2 <= n; j += 2) dot_columns<2>(x, h_out, grad, n, d, j, grad_h_res, grad_h_post);
    for (; j < n; ++j) dot_columns<1>(x, h_out, grad, n, d, j, grad_h_res, grad_h_post);
  }
  if (kStream) finish_streams();
}

}  // namespace MHC_ISA
}  // namespace mhc
