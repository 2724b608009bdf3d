// SPDX-License-Identifier: Apache-2.0
// MhcPost on a range of tokens, forward and backward.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// The streams of one token at one vector of columns; `some` lanes of it, when it is the end of a row.
template <int kN, typename Scalar>
struct Column {
  Vec streams[kN];

  Column(const Scalar *x, int64_t d, int64_t left) {
#pragma GCC unroll 8
    for (int i = 0; i < kN; ++i) streams[i] = load_up_to(x + i * d, left);
  }
};

template <int kN, bool kStream, typename Scalar>
void post_forward_tokens(const PostForward &a, int64_t begin, int64_t end) {
  const int64_t n = kN ? kN : a.sizes.streams, d = a.sizes.hidden;
  for (int64_t t = begin; t < end; ++t) {
    const Scalar *x = static_cast<const Scalar *>(a.x) + t * n * d;
    const Scalar *h_out = static_cast<const Scalar *>(a.h_out) + t * d;
    Scalar *out = static_cast<Scalar *>(a.out) + t * n * d;
    const float *h_post = a.h_post + t * n;
    const float *h_res = a.h_res ? a.h_res + t * n * n : nullptr;
    for (int64_t c = 0; c < d; c += kLanes) {
      const int64_t left = d - c;
      const Vec h = load_up_to(h_out + c, left);
      const auto finish = [&](int64_t j, Vec sum) { put_up_to<kStream>(out + j * d + c, sum, left); };
      if (!h_res) {
        for (int64_t j = 0; j < n; ++j) finish(j, h_post[j] * h + load_up_to(x + j * d + c, left));
      } else if constexpr (kN != 0) {
        const Column<kN, Scalar> column(x + c, d, left);
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) {
          Vec sum = h_post[j] * h;
#pragma GCC unroll 8
          for (int i = 0; i < kN; ++i) sum += h_res[i * kN + j] * column.streams[i];
          finish(j, sum);
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          Vec sum = h_post[j] * h;
          for (int64_t i = 0; i < n; ++i) sum += h_res[i * n + j] * load_up_to(x + i * d + c, left);
          finish(j, sum);
        }
      }
    }
  }
  if (kStream) finish_streams();
}

// to[r][j] = sum over d of x[r] * grad[j], for kRows rows and kColumns columns: as many sums as there are registers for
template <int kRows, int kColumns, typename Scalar>
inline void dots(const Scalar *const *x, const Scalar *grad, int64_t d, float *const *to) {
  constexpr int kCount = (kRows * kColumns + 7) / 8 * 8;  // sum_lanes takes eight
  Vec sums[kCount] = {};
  int64_t c = 0;
  const auto add = [&](auto get) {
    Vec g[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) g[j] = get(grad + j * d + c);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x_r = get(x[r] + c);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) sums[r * kColumns + j] += x_r * g[j];
    }
  };
  for (; c + kLanes <= d; c += kLanes) add([](const Scalar *p) { return load(p); });
  if (c < d) add([left = d - c](const Scalar *p) { return load_some(p, left); });
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
    for (int64_t c = 0; c < d; c += kLanes) {
      const int64_t left = d - c;
      const auto finish = [&](Scalar *to, Vec sum) { put_up_to<kStream>(to + c, sum, left); };
      if constexpr (kN != 0) {
        const Column<kN, Scalar> column(grad + c, d, left);
        Vec sum = {};
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) sum += h_post[j] * column.streams[j];
        finish(grad_h_out, sum);
        for (int i = 0; i < kN; ++i) {
          sum = Vec{};
          if (h_res) {
#pragma GCC unroll 8
            for (int j = 0; j < kN; ++j) sum += h_res[i * kN + j] * column.streams[j];
          } else {
            sum = column.streams[i];
          }
          finish(grad_x + i * d, sum);
        }
      } else {
        Vec sum = {};
        for (int64_t j = 0; j < n; ++j) sum += h_post[j] * load_up_to(grad + j * d + c, left);
        finish(grad_h_out, sum);
        for (int64_t i = 0; i < n; ++i) {
          sum = Vec{};
          if (h_res) {
            for (int64_t j = 0; j < n; ++j) sum += h_res[i * n + j] * load_up_to(grad + j * d + c, left);
          } else {
            sum = load_up_to(grad + i * d + c, left);
          }
          finish(grad_x + i * d, sum);
        }
      }
    }
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
