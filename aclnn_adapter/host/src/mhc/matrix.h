// One token's mixing matrix, in double: what is stored of it is rounded once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace host {

inline constexpr int kMaxStreams = 8;

struct Matrix {
  double at[kMaxStreams][kMaxStreams];
  std::int64_t n;

  Matrix(const float *values, std::int64_t streams) : at{}, n(streams) {
    for (std::int64_t i = 0; i < n * n; ++i) at[i / n][i % n] = static_cast<double>(values[i]);
  }

  double row(std::int64_t i) const {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += at[i][j];
    return sum;
  }
  double column(std::int64_t j) const {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += at[i][j];
    return sum;
  }
  double sum(bool columns, std::int64_t k) const { return columns ? column(k) : row(k); }

  // Calls change(element, row, column) for every element.
  template <typename Change>
  void each(const Change &change) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) change(at[i][j], i, j);
    }
  }

  void store(float *to) const {
    for (std::int64_t i = 0; i < n * n; ++i) to[i] = static_cast<float>(at[i / n][i % n]);
  }

  // exp(x - the row's largest element); the sums of these rows are those that softmax divides by.
  void exponentiate() {
    for (std::int64_t i = 0; i < n; ++i) {
      const double largest = *std::max_element(at[i], at[i] + n);
      for (std::int64_t j = 0; j < n; ++j) at[i][j] = std::exp(at[i][j] - largest);
    }
  }

  // Divides each column or row by a number of its own.
  template <typename Divisor>
  void divide(bool columns, const Divisor &divisor) {
    each([&](double &element, std::int64_t i, std::int64_t j) { element /= divisor(columns ? j : i); });
  }

  // Takes off each column or row the sum of its products with `saved`: the derivative of a division by those sums.
  void take_off(bool columns, const Matrix &saved) {
    Matrix product = *this;
    product.each([&](double &element, std::int64_t i, std::int64_t j) { element *= saved.at[i][j]; });
    each([&](double &element, std::int64_t i, std::int64_t j) { element -= product.sum(columns, columns ? j : i); });
  }
};

}  // namespace host
