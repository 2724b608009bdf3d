// Matrix products. Operands are converted to dense matrices of float (or double) and multiplied tile by tile.
#include <algorithm>
#include <vector>

#include "framework/operator.h"
#include "framework/parallel.h"
#include "operators/engine.h"
#include "operators/matmul.h"

namespace host {
namespace {

constexpr std::int64_t kRows = 4, kColumns = 64;  // a tile of the result stays in registers
constexpr std::int64_t kRun = 128;

// A tensor's last two axes at one position of the others.
struct MatrixView {
  const Tensor &tensor;
  std::int64_t offset, rows, columns, row_step, column_step;

  MatrixView(const Tensor &of, std::int64_t at)
      : tensor(of), offset(at), rows(of.shape[of.rank() - 2]), columns(of.shape[of.rank() - 1]),
        row_step(of.strides[of.rank() - 2]), column_step(of.strides[of.rank() - 1]) {}
};

// Rows of a view, densely; or, where the rows are not dense but the columns are, by columns.
template <typename C>
std::vector<C> dense(const MatrixView &view) {
  std::vector<C> result(static_cast<std::size_t>(view.rows * view.columns));
  if (view.row_step == 1 && view.column_step != 1) {
    std::vector<C> column(static_cast<std::size_t>(view.rows));
    for (std::int64_t j = 0; j < view.columns; ++j) {
      load(view.tensor, view.offset + j * view.column_step, 1, view.rows, column.data());
      for (std::int64_t i = 0; i < view.rows; ++i) {
        result[static_cast<std::size_t>(i * view.columns + j)] = column[static_cast<std::size_t>(i)];
      }
    }
    return result;
  }
  for (std::int64_t i = 0; i < view.rows; ++i) {
    load(view.tensor, view.offset + i * view.row_step, view.column_step, view.columns, &result[static_cast<std::size_t>(i * view.columns)]);
  }
  return result;
}

// One tile: rows of a times a packed block of columns of b. Long sums are taken in runs, which are added up in double: one
// sum in float over the N*D values of a token would lose two digits.
template <typename C>
void multiply_tile(const C *a, std::int64_t rows, std::int64_t inner, const C *b, double (&total)[kRows][kColumns]) {
  for (auto &row : total) std::fill(std::begin(row), std::end(row), 0.0);
  for (std::int64_t start = 0; start < inner; start += kRun) {
    C sum[kRows][kColumns] = {};
    for (std::int64_t k = start; k < std::min(start + kRun, inner); ++k) {
      const C *b_row = b + k * kColumns;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const C factor = i < rows ? a[i * inner + k] : C{};
        for (std::int64_t j = 0; j < kColumns; ++j) sum[i][j] += factor * b_row[j];
      }
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) total[i][j] += sum[i][j];
    }
  }
}

// result [m, n] = a [m, inner] b [inner, n], all dense.
template <typename C>
std::vector<C> multiply(const std::vector<C> &a, const std::vector<C> &b, std::int64_t m, std::int64_t inner,
                        std::int64_t n) {
  std::vector<C> result(static_cast<std::size_t>(m * n));
  const std::int64_t blocks = (n + kColumns - 1) / kColumns;
  parallel_for(blocks, m * inner * n > (1 << 16), [&](std::int64_t block) {
    const std::int64_t column = block * kColumns, width = std::min(kColumns, n - column);
    std::vector<C> packed(static_cast<std::size_t>(inner * kColumns));
    for (std::int64_t k = 0; k < inner; ++k) std::copy_n(b.data() + k * n + column, width, packed.data() + k * kColumns);
    for (std::int64_t row = 0; row < m; row += kRows) {
      const std::int64_t height = std::min(kRows, m - row);
      double sum[kRows][kColumns];
      multiply_tile(a.data() + row * inner, height, inner, packed.data(), sum);
      for (std::int64_t i = 0; i < height; ++i) {
        std::transform(sum[i], sum[i] + width, result.data() + (row + i) * n + column, [](double x) { return static_cast<C>(x); });
      }
    }
  });
  return result;
}

template <typename C>
void multiply_matrices(const MatrixView &a, const MatrixView &b, const MatrixView &out) {
  const std::vector<C> result = multiply(dense<C>(a), dense<C>(b), a.rows, a.columns, b.columns);
  for (std::int64_t i = 0; i < out.rows; ++i) {
    store(result.data() + i * out.columns, out.tensor, out.offset + i * out.row_step, out.column_step, out.columns);
  }
}

// The offset of a batch in an operand whose leading axes broadcast to those of the result.
std::int64_t batch_offset(std::int64_t batch, const Shape &batches, const Tensor &tensor) {
  std::int64_t offset = 0;
  const std::size_t own = tensor.rank() - 2;
  for (std::size_t i = batches.size(); i-- > 0; batch /= batches[i]) {
    const std::size_t missing = batches.size() - own;
    if (i >= missing && tensor.shape[i - missing] != 1) offset += batch % batches[i] * tensor.strides[i - missing];
  }
  return offset;
}

}  // namespace

void multiply_batches(const Tensor &a, const Tensor &b, const Tensor &out) {
  const Shape batches(out.shape.begin(), out.shape.end() - 2);
  with_compute(floating(meet(compute_type(a.dtype), compute_type(b.dtype))), [&](auto zero) {
    using C = decltype(zero);
    if constexpr (std::is_floating_point_v<C>) {
      for (std::int64_t batch = 0; batch < element_count(batches); ++batch) {
        multiply_matrices<C>({a, batch_offset(batch, batches, a)}, {b, batch_offset(batch, batches, b)},
                             {out, batch_offset(batch, batches, out)});
      }
    }
  });
}

namespace {

void check_product(const Tensor &a, const Tensor &b, const Tensor &out) {
  const std::size_t rank = out.rank();
  require(a.rank() >= 2 && b.rank() >= 2 && rank == std::max(a.rank(), b.rank()), kInvalid, "no matrix product of ",
          a.describe(), " and ", b.describe(), " in ", out.describe());
  const bool fits = a.shape.back() == b.shape[b.rank() - 2] && out.shape[rank - 2] == a.shape[a.rank() - 2] &&
                    out.shape.back() == b.shape.back();
  require(fits, kInvalid, "no matrix product of ", a.describe(), " and ", b.describe(), " in ", out.describe());
}

Plan product(const Tensor &self, const Tensor &other, Tensor &out, std::int8_t) {
  check_product(self, other, out);
  return {[&] { multiply_batches(self, other, out); }};
}

// A vector as a matrix of one row or one column, and the result without that axis.
Tensor with_axis(const Tensor &tensor, std::size_t axis) {
  Tensor result = tensor;
  result.shape.insert(result.shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
  result.strides.insert(result.strides.begin() + static_cast<std::ptrdiff_t>(axis), 0);
  return result;
}

Plan matmul(const Tensor &self, const Tensor &other, Tensor &out, std::int8_t mode) {
  if (self.rank() >= 2 && other.rank() >= 2) return product(self, other, out, mode);
  require(self.rank() >= 1 && other.rank() >= 1, kInvalid, "aclnnMatmul: an operand is a scalar");
  return {[&] {
    const Tensor a = self.rank() == 1 ? with_axis(self, 0) : self;
    const Tensor b = other.rank() == 1 ? with_axis(other, 1) : other;
    Tensor result = other.rank() == 1 ? with_axis(out, out.rank()) : out;
    if (self.rank() == 1) result = with_axis(result, result.rank() - 1);
    check_product(a, b, result);
    multiply_batches(a, b, result);
  }};
}

// out = beta * self + alpha * (a b)
Plan add_product(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                 Tensor &out, std::int8_t) {
  check_product(a, b, out);
  check_broadcast(out, {&self});
  return {[&] {
    std::vector<float> room(static_cast<std::size_t>(out.size()));
    Tensor product = out;
    product.strides = contiguous_strides(out.shape);
    product.offset = 0;
    product.dtype = ACL_FLOAT;
    product.data = room.data();
    multiply_batches(a, b, product);
    map<float>([f = beta.as<float>(), g = alpha.as<float>()](float s, float p) { return f * s + g * p; }, out, self,
               product);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnMm, host::product)
ACLNN_OPERATOR(aclnnBatchMatMul, host::product)
ACLNN_OPERATOR(aclnnMatmul, host::matmul)
ACLNN_OPERATOR(aclnnAddmm, host::add_product)
ACLNN_OPERATOR(aclnnBaddbmm, host::add_product)
