// Walking several strided arrays over one shape.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "framework/objects.h"
#include "framework/parallel.h"

namespace host {

// Strides and offsets, in elements, of K arrays.
template <std::size_t K>
using Steps = std::array<std::int64_t, K>;

// A shape with as few dimensions as its arrays allow; the last one is a row.
template <std::size_t K>
class Rows {
 public:
  Rows(const Shape &shape, const std::array<Shape, K> &strides) {
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1) continue;
      Steps<K> steps;
      for (std::size_t k = 0; k < K; ++k) steps[k] = strides[k][i];
      if (!shape_.empty() && joins(steps, shape[i])) {
        shape_.back() *= shape[i];
        steps_.back() = steps;
      } else {
        shape_.push_back(shape[i]);
        steps_.push_back(steps);
      }
    }
    if (shape_.empty()) {
      shape_.push_back(element_count(shape));  // one element, or none
      steps_.emplace_back();
    }
  }

  // Calls row(offsets, length, steps) for every row, or for pieces of it when there are few rows.
  template <typename Row>
  void for_each(const Row &row) const {
    const std::int64_t length = shape_.back(), total = element_count(shape_);
    if (total == 0) return;
    const std::int64_t pieces = std::clamp<std::int64_t>(total / length < kFewRows ? length / kPiece : 1, 1, kPieces);
    const std::int64_t piece = (length + pieces - 1) / pieces, rows = total / length;
    parallel_for(rows * pieces, total >= kWorthThreads, [&](std::int64_t task) {
      const std::int64_t start = task % pieces * piece, count = std::min(piece, length - start);
      if (count <= 0) return;
      Steps<K> offsets{};
      std::int64_t index = task / pieces;
      for (std::size_t i = shape_.size() - 1; i-- > 0; index /= shape_[i]) {
        for (std::size_t k = 0; k < K; ++k) offsets[k] += index % shape_[i] * steps_[i][k];
      }
      for (std::size_t k = 0; k < K; ++k) offsets[k] += start * steps_.back()[k];
      row(offsets, count, steps_.back());
    });
  }

 private:
  static constexpr std::int64_t kWorthThreads = 1 << 15, kFewRows = 8, kPiece = 1 << 12, kPieces = 64;

  // Whether the last dimension and one of this size and these steps are one in every array.
  bool joins(const Steps<K> &steps, std::int64_t size) const {
    for (std::size_t k = 0; k < K; ++k) {
      if (steps_.back()[k] != steps[k] * size) return false;
    }
    return true;
  }

  Shape shape_;
  std::vector<Steps<K>> steps_;
};

}  // namespace host
