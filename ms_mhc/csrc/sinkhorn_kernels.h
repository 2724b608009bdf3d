// SPDX-License-Identifier: Apache-2.0
// Sinkhorn, forward and backward, on as many tokens at a time as a vector has doubles: lane l of every vector belongs
// to token l. Double precision costs little here, keeps exp(-100) apart from zero, and leaves the many divisions of the
// way back without visible error.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace mhc {
namespace MHC_ISA {

// element k of `count` consecutive tokens, `nn` apart; lanes beyond repeat the last token
inline Doubles gather(const float *from, int64_t nn, int64_t count) {
  Doubles v;
  for (int lane = 0; lane < kDoubleLanes; ++lane) {
    v[lane] = static_cast<double>(from[(lane < count ? lane : count - 1) * nn]);
  }
  return v;
}

inline void scatter(Doubles v, float *to, int64_t nn, int64_t count) {
  for (int64_t lane = 0; lane < count; ++lane) to[lane * nn] = static_cast<float>(v[lane]);
}

template <int kN>
struct Sinkhorn {
  int64_t any_n;
  Doubles eps;
  Recipe recipe;

  int64_t n() const { return kN ? kN : any_n; }

  // y = exp(x - rowmax), and its softmax for the recipe that starts from that. first_max, unless null, is the column of
  // the first largest entry of each row.
  void start(const float *x, int64_t count, Doubles *y, Longs *first_max) const {
    for (int64_t i = 0; i < n(); ++i) {
      Doubles *row = y + i * n();
      for (int64_t j = 0; j < n(); ++j) row[j] = gather(x + i * n() + j, n() * n(), count);
      Doubles top = row[0];
      Longs at = {};
      for (int64_t j = 1; j < n(); ++j) {
        at = row[j] > top ? Longs{} + j : at;
        top = row[j] > top ? row[j] : top;
      }
      if (first_max) first_max[i] = at;
      Doubles sum = {};
      for (int64_t j = 0; j < n(); ++j) sum += row[j] = exp(row[j] - top);
      if (recipe == Recipe::kDeepSeekV4) {
        for (int64_t j = 0; j < n(); ++j) row[j] /= sum;
      }
    }
  }

  // y divided by the sums of its rows; the sums are kept for the way back, unless null
  void divide_rows(Doubles *y, Doubles *sums) const {
    for (int64_t i = 0; i < n(); ++i) {
      Doubles sum = eps;
      for (int64_t j = 0; j < n(); ++j) sum += y[i * n() + j];
      const Doubles inverse = 1.0 / sum;
      for (int64_t j = 0; j < n(); ++j) y[i * n() + j] *= inverse;
      if (sums) sums[i] = sum;
    }
  }

  void divide_columns(Doubles *y, Doubles *sums) const {
    for (int64_t j = 0; j < n(); ++j) {
      Doubles sum = eps;
      for (int64_t i = 0; i < n(); ++i) sum += y[i * n() + j];
      const Doubles inverse = 1.0 / sum;
      for (int64_t i = 0; i < n(); ++i) y[i * n() + j] *= inverse;
      if (sums) sums[j] = sum;
    }
  }

  // All steps after the start. sums, unless null, has room for 2 * num_iters steps.
  void iterate(Doubles *y, int64_t num_iters, Doubles *sums) const {
    int64_t step = 0;
    const auto kept = [&] { return sums ? sums + step++ * n() : nullptr; };
    if (recipe == Recipe::kDeepSeekV4) {
      for (int64_t k = 0; k < n() * n(); ++k) y[k] += eps;
    } else {
      divide_rows(y, kept());
    }
    divide_columns(y, kept());
    for (int64_t k = 1; k < num_iters; ++k) {
      divide_rows(y, kept());
      divide_columns(y, kept());
    }
  }

  // From a step's result and its gradient to its argument and that one's gradient.
  void undo(Doubles *y, Doubles *grad, Doubles sum, int64_t stride) const {
    Doubles dot = {};
    for (int64_t k = 0; k < n(); ++k) dot += grad[k * stride] * y[k * stride];
    const Doubles inverse = 1.0 / sum;
    for (int64_t k = 0; k < n(); ++k) {
      grad[k * stride] = (grad[k * stride] - dot) * inverse;
      y[k * stride] *= sum;
    }
  }

  void undo_columns(Doubles *y, Doubles *grad, const Doubles *sums) const {
    for (int64_t j = 0; j < n(); ++j) undo(y + j, grad + j, sums[j], n());
  }

  void undo_rows(Doubles *y, Doubles *grad, const Doubles *sums) const {
    for (int64_t i = 0; i < n(); ++i) undo(y + i * n(), grad + i * n(), sums[i], 1);
  }

  void iterate_back(Doubles *y, Doubles *grad, int64_t num_iters, const Doubles *sums) const {
    int64_t step = recipe == Recipe::kDeepSeekV4 ? 2 * num_iters - 1 : 2 * num_iters;
    for (int64_t k = 1; k < num_iters; ++k) {
      undo_columns(y, grad, sums + --step * n());
      undo_rows(y, grad, sums + --step * n());
    }
    undo_columns(y, grad, sums + --step * n());
    if (recipe == Recipe::kPaper) undo_rows(y, grad, sums);
  }

  // From the gradient of what start() made, and that itself, to the gradient of the logits.
  void start_back(const Doubles *y, Doubles *grad, const Longs *first_max) const {
    for (int64_t i = 0; i < n(); ++i) {
      Doubles dot = {};
      for (int64_t j = 0; j < n(); ++j) dot += grad[i * n() + j] * y[i * n() + j];
      for (int64_t j = 0; j < n(); ++j) {
        Doubles &g = grad[i * n() + j];
        if (recipe == Recipe::kDeepSeekV4) {
          g = (g - dot) * y[i * n() + j];
        } else {
          g = g * y[i * n() + j] - (first_max[i] == j ? dot : Doubles{});
        }
      }
    }
  }
};

template <int kN>
void sinkhorn_forward_tokens(const SinkhornForward &a, int64_t begin, int64_t end, void *scratch) {
  const Sinkhorn<kN> sinkhorn{a.sizes.streams, splat_double(static_cast<double>(a.eps)), a.recipe};
  const int64_t nn = sinkhorn.n() * sinkhorn.n();
  Doubles local[kN ? kN * kN : 1];
  Doubles *y = kN ? local : static_cast<Doubles *>(scratch);
  for (int64_t t = begin; t < end; t += kDoubleLanes) {
    const int64_t count = end - t < kDoubleLanes ? end - t : kDoubleLanes;
    sinkhorn.start(a.x + t * nn, count, y, nullptr);
    sinkhorn.iterate(y, a.num_iters, nullptr);
    for (int64_t k = 0; k < nn; ++k) scatter(y[k], a.output + t * nn + k, nn, count);
  }
}

template <int kN>
void sinkhorn_backward_tokens(const SinkhornBackward &a, int64_t begin, int64_t end, void *scratch) {
  const Sinkhorn<kN> sinkhorn{a.sizes.streams, splat_double(static_cast<double>(a.eps)), a.recipe};
  const int64_t n = sinkhorn.n(), nn = n * n;
  Doubles *sums = static_cast<Doubles *>(scratch);  // [2 * num_iters, N]
  Doubles *first = sums + 2 * a.num_iters * n;      // [N, N], what start() made
  Doubles *y = first + nn;
  Doubles *grad = y + nn;
  Longs *first_max = reinterpret_cast<Longs *>(grad + nn);
  for (int64_t t = begin; t < end; t += kDoubleLanes) {
    const int64_t count = end - t < kDoubleLanes ? end - t : kDoubleLanes;
    sinkhorn.start(a.x + t * nn, count, first, first_max);
    for (int64_t k = 0; k < nn; ++k) {
      y[k] = first[k];
      grad[k] = gather(a.grad_output + t * nn + k, nn, count);
    }
    sinkhorn.iterate(y, a.num_iters, sums);
    sinkhorn.iterate_back(y, grad, a.num_iters, sums);
    sinkhorn.start_back(first, grad, first_max);
    for (int64_t k = 0; k < nn; ++k) scatter(grad[k], a.grad_x + t * nn + k, nn, count);
  }
}

inline int64_t sinkhorn_forward_scratch(const SinkhornForward &a) {
  return a.sizes.streams * a.sizes.streams * static_cast<int64_t>(sizeof(Doubles));
}

inline int64_t sinkhorn_backward_scratch(const SinkhornBackward &a) {
  const int64_t n = a.sizes.streams;
  return (2 * a.num_iters * n + 3 * n * n + n) * static_cast<int64_t>(sizeof(Doubles));
}

}  // namespace MHC_ISA
}  // namespace mhc
