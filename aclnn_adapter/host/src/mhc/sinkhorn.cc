// aclnnMhcSinkhorn and aclnnMhcSinkhornBackward (ACLNN_SPEC.md sections 5 and 6).
//
// The saved tensors are opaque to callers, who only know their lengths. Here step k of a token is one matrix, its rows
// padded to 8 columns: norm[k][token][row][8] holds what step k made, sum[k][token][8] what it divided by. norm[0] is
// the softmax without eps, which is what the exact gradient needs; sum[0] is not used.
#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/dense.h"
#include "framework/operator.h"
#include "mhc.h"
#include "mhc/checks.h"

namespace host {
namespace {

constexpr std::int64_t kPadded = 8;
constexpr int kMaxStreams = 8;

// One token's matrix, in double: the saved values are rounded once.
struct Matrix {
  double at[kMaxStreams][kMaxStreams];
  std::int64_t n;

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
};

struct Saved {
  std::int64_t tokens, n;

  std::int64_t norm(std::int64_t step, std::int64_t token, std::int64_t i) const {
    return ((step * tokens + token) * n + i) * kPadded;
  }
  std::int64_t sum(std::int64_t step, std::int64_t token) const { return (step * tokens + token) * kPadded; }
};

Matrix softmax(const float *logits, std::int64_t n) {
  Matrix result{{}, n};
  for (std::int64_t i = 0; i < n; ++i) {
    double largest = logits[i * n];
    for (std::int64_t j = 1; j < n; ++j) largest = std::max<double>(largest, logits[i * n + j]);
    for (std::int64_t j = 0; j < n; ++j) result.at[i][j] = std::exp(logits[i * n + j] - largest);
    const double sum = result.row(i);
    for (std::int64_t j = 0; j < n; ++j) result.at[i][j] /= sum;
  }
  return result;
}

void store(const Matrix &m, float *norm, const Saved &saved, std::int64_t step, std::int64_t token) {
  for (std::int64_t i = 0; i < m.n; ++i) {
    for (std::int64_t j = 0; j < m.n; ++j) norm[saved.norm(step, token, i) + j] = static_cast<float>(m.at[i][j]);
  }
}

// Odd steps divide columns by their sums, even steps rows.
void save_token(const float *logits, float eps, std::int64_t iterations, std::int64_t token, const Saved &saved,
                float *norm, float *sums) {
  Matrix m = softmax(logits, saved.n);
  store(m, norm, saved, 0, token);
  for (auto &row : m.at) {
    for (double &value : row) value += static_cast<double>(eps);
  }
  for (std::int64_t step = 1; step < 2 * iterations; ++step) {
    const bool columns = step % 2 == 1;
    double divisor[kMaxStreams];
    for (std::int64_t k = 0; k < m.n; ++k) {
      divisor[k] = (columns ? m.column(k) : m.row(k)) + static_cast<double>(eps);
      sums[saved.sum(step, token) + k] = static_cast<float>(divisor[k]);
    }
    for (std::int64_t i = 0; i < m.n; ++i) {
      for (std::int64_t j = 0; j < m.n; ++j) m.at[i][j] /= divisor[columns ? j : i];
    }
    store(m, norm, saved, step, token);
  }
}

Plan sinkhorn(const Tensor *x, float eps, std::int64_t iterations, Tensor *output, Tensor *norm, Tensor *sum) {
  Checker check("aclnnMhcSinkhorn", {x, output, norm, sum});
  check.not_null();
  auto given = [](const Tensor *saved) { return saved != nullptr && saved->size() != 1; };
  const bool save = given(norm);
  if (!save) norm = nullptr;
  if (!given(sum)) sum = nullptr;
  for (const Tensor *tensor : {x, static_cast<const Tensor *>(output)}) {
    require(tensor->dtype == ACL_FLOAT, kInvalid, "aclnnMhcSinkhorn: ", tensor->describe(), " is not float32");
  }
  require(output->shape == x->shape, kInvalid, check.where("output"), " ", output->describe(), " is not like x");
  require(x->rank() == 3 || x->rank() == 4, kInvalid, check.where("x"), " has rank ", x->rank(), ", not 3 or 4");
  static const contract::Limits parameters{{4, 6, 8}, 1, {}, 1, {}, {{1, 100}}, {}, {}};  // the parameter check knows no soc
  require(iterations >= parameters.iterations->first && iterations <= parameters.iterations->second, kInvalid,
          check.where("numIters"), " is ", iterations, ", not 1 to 100");
  check.streams_within(parameters, kInvalid);
  require(save == (sum != nullptr), kInvalid, "aclnnMhcSinkhorn: normOut and sumOut must be given both or neither");
  Checker complete("aclnnMhcSinkhorn", {x, output, norm, sum});
  complete.set_size("I", iterations);
  complete.shapes();
  complete.dtypes();
  check.same_format("x", "output");
  check.not_empty("input");
  check.limits();
  return {[=, sizes = check.sizes()] {
    DenseInput logits(x);
    DenseOutput dense_output(output), dense_norm(norm), dense_sum(sum);
    mhc::SinkhornForward args{};
    args.sizes = sizes;
    args.x = logits.get<float>();
    args.eps = eps;
    args.num_iters = iterations;
    args.recipe = mhc::Recipe::kDeepSeekV4;
    args.output = dense_output.get<float>();
    mhc::sinkhorn_forward(args);
    if (save) {
      const Saved saved{sizes.tokens, sizes.streams};
      std::fill_n(dense_norm.get<float>(), norm->size(), 0.0F);  // the padding too
      std::fill_n(dense_sum.get<float>(), sum->size(), 0.0F);
      for (std::int64_t token = 0; token < sizes.tokens; ++token) {
        save_token(args.x + token * sizes.streams * sizes.streams, eps, iterations, token, saved,
                   dense_norm.get<float>(), dense_sum.get<float>());
      }
    }
    for (const DenseOutput *dense : {&dense_output, &dense_norm, &dense_sum}) dense->write();
  }};
}

// (g - sums of g * saved along a column or a row), the derivative of a division by those sums.
void step_back(Matrix &g, const float *norm, const Saved &saved, std::int64_t step, std::int64_t token, bool columns) {
  Matrix product = g;
  for (std::int64_t i = 0; i < g.n; ++i) {
    for (std::int64_t j = 0; j < g.n; ++j) product.at[i][j] *= norm[saved.norm(step, token, i) + j];
  }
  for (std::int64_t k = 0; k < g.n; ++k) {
    const double sum = columns ? product.column(k) : product.row(k);
    for (std::int64_t l = 0; l < g.n; ++l) (columns ? g.at[l][k] : g.at[k][l]) -= sum;
  }
}

void backward_token(const float *grad_output, const float *norm, const float *sums, std::int64_t steps,
                    std::int64_t token, const Saved &saved, float *out) {
  const std::int64_t n = saved.n;
  Matrix g{{}, n};
  for (std::int64_t i = 0; i < n * n; ++i) g.at[i / n][i % n] = grad_output[i];
  for (std::int64_t step = steps - 1; step >= 1; --step) {
    const bool columns = step % 2 == 1;
    step_back(g, norm, saved, step, token, columns);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) g.at[i][j] /= sums[saved.sum(step, token) + (columns ? j : i)];
    }
  }
  step_back(g, norm, saved, 0, token, false);
  for (std::int64_t i = 0; i < n * n; ++i) {
    out[i] = static_cast<float>(g.at[i / n][i % n] * norm[saved.norm(0, token, i / n) + i % n]);
  }
}

Plan sinkhorn_backward(const Tensor *grad_output, const Tensor *norm, const Tensor *sum, Tensor *out) {
  Checker check("aclnnMhcSinkhornBackward", {grad_output, norm, sum, out});
  check.not_null();
  if (grad_output->empty()) return {[] {}};
  check.dtypes();
  check.ranks("");
  static const contract::Limits parameters{{4, 6, 8}, 1, {}, 1, {}, {}, {}, {}};
  check.streams_within(parameters, kInvalid);
  const std::int64_t per_iteration = 2 * check.size("T") * check.size("N") * kPadded;
  const std::int64_t iterations = norm->size() / per_iteration;  // nothing else tells how many there were
  check.set_size("I", iterations);
  require(out->shape == grad_output->shape, kInvalid, check.where("out"), " is not like gradOutput");
  check.formats("");
  check.limits();
  const bool lengths_fit =
    iterations >= 1 && norm->size() == iterations * per_iteration && sum->size() * check.size("N") == norm->size();
  require(lengths_fit, kTilingError, "aclnnMhcSinkhornBackward: normOut ", norm->describe(), " and sumOut ",
          sum->describe(), " do not belong to gradOutput ", grad_output->describe());
  return {[=, sizes = check.sizes()] {
    DenseInput dense_grad(grad_output), dense_norm(norm), dense_sum(sum);
    DenseOutput dense_out(out);
    const Saved saved{sizes.tokens, sizes.streams};
    const std::int64_t matrix = sizes.streams * sizes.streams;
    for (std::int64_t token = 0; token < sizes.tokens; ++token) {
      backward_token(dense_grad.get<float>() + token * matrix, dense_norm.get<float>(), dense_sum.get<float>(),
                     2 * iterations, token, saved, dense_out.get<float>() + token * matrix);
    }
    dense_out.write();
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnMhcSinkhorn, host::sinkhorn)
ACLNN_OPERATOR(aclnnMhcSinkhornBackward, host::sinkhorn_backward)
