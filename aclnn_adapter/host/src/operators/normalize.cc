// Layer normalization and root-mean-square normalization.
#include <cmath>

#include "framework/operator.h"
#include "operators/lines.h"

namespace host {
namespace {

Line whole(const Tensor *tensor, std::size_t size, float otherwise) {
  return tensor == nullptr ? Line(size, otherwise) : Lines::from_axis(*tensor, 0).read(0);
}

void write_number(const Tensor *tensor, std::int64_t line, float value) {
  if (tensor == nullptr) return;
  Lines::from_axis(*tensor, tensor->rank()).write(line, {value});
}

float read_number(const Tensor &tensor, std::int64_t line) {
  return Lines::from_axis(tensor, tensor.rank()).read(line)[0];
}

std::size_t first_normalized(const Tensor &input, std::size_t axes) {
  require(axes <= input.rank(), kInvalid, "normalization over ", axes, " axes of ", input.describe());
  return input.rank() - axes;
}

Plan layer_norm(const Tensor &input, const IntArray &normalized, const Tensor *weight, const Tensor *bias, double eps,
                Tensor &out, Tensor *mean_out, Tensor *rstd_out) {
  const std::size_t first = first_normalized(input, normalized.values.size());
  return {[&input, &out, weight, bias, eps, mean_out, rstd_out, first] {
    const Lines from = Lines::from_axis(input, first), to = Lines::from_axis(out, first);
    const auto size = static_cast<std::size_t>(from.length());
    const Line gamma = whole(weight, size, 1), beta = whole(bias, size, 0);
    for_each_line(from.count(), [&](std::int64_t line) {
      Line x = from.read(line);
      double sum = 0, squares = 0;
      for (float value : x) sum += value;
      const double mean = sum / static_cast<double>(size);
      for (float value : x) squares += (value - mean) * (value - mean);
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(size) + eps);
      for (std::size_t i = 0; i < size; ++i) {
        x[i] = static_cast<float>((x[i] - mean) * rstd) * gamma[i] + beta[i];
      }
      to.write(line, x);
      write_number(mean_out, line, static_cast<float>(mean));
      write_number(rstd_out, line, static_cast<float>(rstd));
    });
  }};
}

// Adds line after line to the gradients of weight and bias, in order, so that they do not depend on threads.
struct ParameterGradients {
  std::vector<double> weight, bias;

  explicit ParameterGradients(std::size_t size) : weight(size), bias(size) {}

  void add(const Line &grad, const Line &normalized) {
    for (std::size_t i = 0; i < grad.size(); ++i) {
      weight[i] += static_cast<double>(grad[i]) * normalized[i];
      bias[i] += grad[i];
    }
  }

  static void write(const std::vector<double> &sums, const Tensor *tensor) {
    if (tensor != nullptr) Lines::from_axis(*tensor, 0).write(0, Line(sums.begin(), sums.end()));
  }
};

Plan layer_norm_backward(const Tensor &grad_output, const Tensor &input, const IntArray &normalized,
                         const Tensor &mean, const Tensor &rstd, const Tensor *weight, const Tensor *,
                         const BoolArray &, Tensor *grad_input, Tensor *grad_weight, Tensor *grad_bias) {
  const std::size_t first = first_normalized(input, normalized.values.size());
  return {[&, weight, grad_input, grad_weight, grad_bias, first] {
    const Lines grads = Lines::from_axis(grad_output, first), inputs = Lines::from_axis(input, first);
    const auto size = static_cast<std::size_t>(inputs.length());
    const Line gamma = whole(weight, size, 1);
    ParameterGradients sums(size);
    for (std::int64_t line = 0; line < inputs.count(); ++line) {
      const Line grad = grads.read(line);
      Line x = inputs.read(line);
      const float center = read_number(mean, line), scale = read_number(rstd, line);
      double sum = 0, product = 0;
      for (std::size_t i = 0; i < size; ++i) {
        x[i] = (x[i] - center) * scale;
        sum += static_cast<double>(grad[i]) * gamma[i];
        product += static_cast<double>(grad[i]) * gamma[i] * x[i];
      }
      sums.add(grad, x);
      if (grad_input == nullptr) continue;
      const auto mean_sum = static_cast<float>(sum / static_cast<double>(size));
      const auto mean_product = static_cast<float>(product / static_cast<double>(size));
      for (std::size_t i = 0; i < size; ++i) x[i] = scale * (grad[i] * gamma[i] - mean_sum - x[i] * mean_product);
      Lines::from_axis(*grad_input, first).write(line, x);
    }
    ParameterGradients::write(sums.weight, grad_weight);
    ParameterGradients::write(sums.bias, grad_bias);
  }};
}

Plan rms_norm(const Tensor &x, const Tensor &gamma, double eps, Tensor &y, Tensor &rstd) {
  const std::size_t first = first_normalized(x, gamma.rank());
  return {[&, eps, first] {
    const Lines from = Lines::from_axis(x, first), to = Lines::from_axis(y, first);
    const auto size = static_cast<std::size_t>(from.length());
    const Line scale = whole(&gamma, size, 1);
    for_each_line(from.count(), [&](std::int64_t line) {
      Line values = from.read(line);
      double squares = 0;
      for (float value : values) squares += static_cast<double>(value) * value;
      const auto inverse = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + eps));
      for (std::size_t i = 0; i < size; ++i) values[i] = values[i] * inverse * scale[i];
      to.write(line, values);
      write_number(&rstd, line, inverse);
    });
  }};
}

Plan rms_norm_backward(const Tensor &grad, const Tensor &x, const Tensor &rstd, const Tensor &gamma, Tensor &grad_x,
                       Tensor &grad_gamma) {
  const std::size_t first = first_normalized(x, gamma.rank());
  return {[&, first] {
    const Lines grads = Lines::from_axis(grad, first), inputs = Lines::from_axis(x, first);
    const Lines results = Lines::from_axis(grad_x, first);
    const auto size = static_cast<std::size_t>(inputs.length());
    const Line scale = whole(&gamma, size, 1);
    ParameterGradients sums(size);
    for (std::int64_t line = 0; line < inputs.count(); ++line) {
      const Line g = grads.read(line);
      Line values = inputs.read(line);
      const float inverse = read_number(rstd, line);
      double product = 0;
      for (std::size_t i = 0; i < size; ++i) {
        values[i] *= inverse;
        product += static_cast<double>(g[i]) * scale[i] * values[i];
      }
      sums.add(g, values);
      const auto mean_product = static_cast<float>(product / static_cast<double>(size));
      for (std::size_t i = 0; i < size; ++i) values[i] = inverse * (g[i] * scale[i] - values[i] * mean_product);
      results.write(line, values);
    }
    ParameterGradients::write(sums.weight, &grad_gamma);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnLayerNorm, host::layer_norm)
ACLNN_OPERATOR(aclnnLayerNormBackward, host::layer_norm_backward)
ACLNN_OPERATOR(aclnnRmsNorm, host::rms_norm)
ACLNN_OPERATOR(aclnnRmsNormGrad, host::rms_norm_backward)
