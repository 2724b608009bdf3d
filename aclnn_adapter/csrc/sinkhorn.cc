// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "mhc.h"

namespace mhc {
namespace {

// The steps of one token, kept for the way back: matrices[k] is what step k made, sums[k] what it divided by.
struct Token {
  int64_t n, num_iters;
  double eps;
  Recipe recipe;
  std::vector<double> start, y, back;
  std::vector<std::vector<double>> matrices, sums;
  std::vector<int64_t> first_max;

  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i * n + j); }

  void normalise(bool rows) {
    std::vector<double> sum(static_cast<size_t>(n), 0.0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) sum[static_cast<size_t>(rows ? i : j)] += y[at(i, j)];
    for (double &s : sum) s += eps;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) y[at(i, j)] /= sum[static_cast<size_t>(rows ? i : j)];
    matrices.push_back(y);
    sums.push_back(sum);
  }

  void forward(const float *x) {
    y.assign(static_cast<size_t>(n * n), 0.0);
    first_max.assign(static_cast<size_t>(n), 0);
    matrices.clear();
    sums.clear();
    for (int64_t i = 0; i < n; ++i) {
      const float *row = x + i * n;
      const int64_t top = std::max_element(row, row + n) - row;
      first_max[static_cast<size_t>(i)] = top;
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += y[at(i, j)] = std::exp(static_cast<double>(row[j]) - static_cast<double>(row[top]));
      if (recipe == Recipe::kDeepSeekV4)
        for (int64_t j = 0; j < n; ++j) y[at(i, j)] /= sum;
    }
    start = y;
    if (recipe == Recipe::kDeepSeekV4) {
      for (double &value : y) value += eps;
      normalise(false);
    } else {
      normalise(true);
      normalise(false);
    }
    for (int64_t k = 1; k < num_iters; ++k) {
      normalise(true);
      normalise(false);
    }
  }

  // back: from the gradient of the last matrix to the gradient of the logits.
  void backward() {
    bool rows = false;
    for (size_t k = matrices.size(); k-- > 0; rows = !rows) {
      std::vector<double> dot(static_cast<size_t>(n), 0.0);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) dot[static_cast<size_t>(rows ? i : j)] += back[at(i, j)] * matrices[k][at(i, j)];
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          const size_t line = static_cast<size_t>(rows ? i : j);
          back[at(i, j)] = (back[at(i, j)] - dot[line]) / sums[k][line];
        }
    }
    for (int64_t i = 0; i < n; ++i) {
      double dot = 0;
      for (int64_t j = 0; j < n; ++j) dot += back[at(i, j)] * start[at(i, j)];
      if (recipe == Recipe::kDeepSeekV4) {
        for (int64_t j = 0; j < n; ++j) back[at(i, j)] = (back[at(i, j)] - dot) * start[at(i, j)];
      } else {
        for (int64_t j = 0; j < n; ++j) back[at(i, j)] *= start[at(i, j)];
        back[at(i, first_max[static_cast<size_t>(i)])] -= dot;
      }
    }
  }
};

}  // namespace

void sinkhorn_forward(const SinkhornForward &a) {
  const int64_t n = a.sizes.streams, nn = n * n;
#pragma omp parallel for
  for (int64_t t = 0; t < a.sizes.tokens; ++t) {
    Token token{n, a.num_iters, static_cast<double>(a.eps), a.recipe, {}, {}, {}, {}, {}, {}};
    token.forward(a.x + t * nn);
    for (int64_t k = 0; k < nn; ++k) a.output[t * nn + k] = static_cast<float>(token.y[static_cast<size_t>(k)]);
  }
}

void sinkhorn_backward(const SinkhornBackward &a) {
  const int64_t n = a.sizes.streams, nn = n * n;
#pragma omp parallel for
  for (int64_t t = 0; t < a.sizes.tokens; ++t) {
    Token token{n, a.num_iters, static_cast<double>(a.eps), a.recipe, {}, {}, {}, {}, {}, {}};
    token.forward(a.x + t * nn);
    token.back.assign(a.grad_output + t * nn, a.grad_output + (t + 1) * nn);
    token.backward();
    for (int64_t k = 0; k < nn; ++k) a.grad_x[t * nn + k] = static_cast<float>(token.back[static_cast<size_t>(k)]);
  }
}

}  // namespace mhc
