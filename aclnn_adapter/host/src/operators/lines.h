// Work along one axis: each line of a tensor is handed over as a dense array of float.
#pragma once

#include <vector>

#include "framework/parallel.h"
#include "operators/engine.h"

namespace host {

using Line = std::vector<float>;

// Some trailing axes of a tensor as one, densely read and written.
class Lines {
 public:
  // Lines along one axis.
  Lines(const Tensor &tensor, std::size_t axis) : tensor_(tensor) {
    for (std::size_t i = 0; i < tensor.rank(); ++i) add(i, i == axis);
  }

  // Lines over all axes from `first` on.
  static Lines from_axis(const Tensor &tensor, std::size_t first) {
    Lines lines(tensor);
    for (std::size_t i = 0; i < tensor.rank(); ++i) lines.add(i, i >= first);
    return lines;
  }

  std::int64_t count() const { return element_count(outer_); }
  std::int64_t length() const { return element_count(inner_); }

  Line read(std::int64_t line) const {
    Line values(static_cast<std::size_t>(length()));
    for_each_row(line, [&](std::int64_t at, std::int64_t offset, std::int64_t step, std::int64_t n) {
      load(tensor_, offset, step, n, values.data() + at);
    });
    return values;
  }

  void write(std::int64_t line, const Line &values) const {
    for_each_row(line, [&](std::int64_t at, std::int64_t offset, std::int64_t step, std::int64_t n) {
      store(values.data() + at, tensor_, offset, step, n);
    });
  }

 private:
  explicit Lines(const Tensor &tensor) : tensor_(tensor) {}

  void add(std::size_t axis, bool inner) {
    (inner ? inner_ : outer_).push_back(tensor_.shape[axis]);
    (inner ? inner_strides_ : outer_strides_).push_back(tensor_.strides[axis]);
  }

  static std::int64_t offset_at(std::int64_t index, const Shape &shape, const Shape &strides, std::size_t axes) {
    std::int64_t offset = 0;
    for (std::size_t i = axes; i-- > 0; index /= shape[i]) offset += index % shape[i] * strides[i];
    return offset;
  }

  template <typename Row>
  void for_each_row(std::int64_t line, const Row &row) const {
    const std::int64_t base = offset_at(line, outer_, outer_strides_, outer_.size());
    if (inner_.empty()) return row(0, base, 1, 1);
    const std::int64_t n = inner_.back(), rows = n == 0 ? 0 : length() / n;
    for (std::int64_t r = 0; r < rows; ++r) {
      row(r * n, base + offset_at(r, inner_, inner_strides_, inner_.size() - 1), inner_strides_.back(), n);
    }
  }

  const Tensor &tensor_;
  Shape outer_, outer_strides_, inner_, inner_strides_;
};

// Lines are independent of each other.
template <typename Work>
void for_each_line(std::int64_t count, const Work &work) {
  parallel_for(count, count > 8, work);
}

}  // namespace host
