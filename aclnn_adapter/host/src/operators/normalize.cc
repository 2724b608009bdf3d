// Layer normalization and root-mean-square normalization.
#include "operators/normalize.h"

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

}  // namespace

void layer_norm(const LayerNormTensors &t, std::size_t first, double eps, Spread kind) {
  const Lines from = Lines::from_axis(t.input, first), to = Lines::from_axis(t.out, first);
  const auto size = static_cast<std::size_t>(from.length());
  const Line gamma = whole(t.weight, size, 1), beta = whole(t.bias, size, 0);
  for_each_line(from.count(), [&](std::int64_t line) {
    Line x = from.read(line);
    double sum = 0, squares = 0;
    for (float value : x) sum += value;
    const double mean = sum / static_cast<double>(size);
    for (float value : x) squares += (value - mean) * (value - mean);
    const double variance = squares / static_cast<double>(size), scale = 1 / std::sqrt(variance + eps);
    for (std::size_t i = 0; i < size; ++i) {
      x[i] = static_cast<float>((x[i] - mean) * scale) * gamma[i] + beta[i];
    }
    to.write(line, x);
    write_number(t.mean, line, static_cast<float>(mean));
    write_number(t.spread, line, static_cast<float>(kind == Spread::kVariance ? variance : scale));
  });
}

void layer_norm_backward(const LayerNormGradTensors &t, std::size_t first, double eps, Spread kind) {
  const Lines grads = Lines::from_axis(t.grad_output, first), inputs = Lines::from_axis(t.input, first);
  const auto size = static_cast<std::size_t>(inputs.length());
  const Line gamma = whole(t.weight, size, 1);
  ParameterGradients sums(size);
  for (std::int64_t line = 0; line < inputs.count(); ++line) {
    const Line grad = grads.read(line);
    Line x = inputs.read(line);
    const float center = read_number(t.mean, line), spread = read_number(t.spread, line);
    const float scale = kind == Spread::kVariance ? static_cast<float>(1 / std::sqrt(spread + eps)) : spread;
    double sum = 0, product = 0;
    for (std::size_t i = 0; i < size; ++i) {
      x[i] = (x[i] - center) * scale;
      sum += static_cast<double>(grad[i]) * gamma[i];
      product += static_cast<double>(grad[i]) * gamma[i] * x[i];
    }
    sums.add(grad, x);
    if (t.grad_input == nullptr) continue;
    const auto mean_sum = static_cast<float>(sum / static_cast<double>(size));
    const auto mean_product = static_cast<float>(product / static_cast<double>(size));
    for (std::size_t i = 0; i < size; ++i) x[i] = scale * (grad[i] * gamma[i] - mean_sum - x[i] * mean_product);
    Lines::from_axis(*t.grad_input, first).write(line, x);
  }
  ParameterGradients::write(sums.weight, t.grad_weight);
  ParameterGradients::write(sums.bias, t.grad_bias);
}

namespace {

Plan layer_norm_plan(const Tensor &input, const IntArray &normalized, const Tensor *weight, const Tensor *bias,
                     double eps, Tensor &out, Tensor *mean, Tensor *rstd) {
  const std::size_t first = first_normalized(input, normalized.values.size());
  const LayerNormTensors tensors{input, weight, bias, out, mean, rstd};
  return {[=] { layer_norm(tensors, first, eps, Spread::kReciprocalDeviation); }};
}

Plan layer_norm_backward_plan(const Tensor &grad_output, const Tensor &input, const IntArray &normalized,
                              const Tensor &mean, const Tensor &rstd, const Tensor *weight, const Tensor *,
                              const BoolArray &, Tensor *grad_input, Tensor *grad_weight, Tensor *grad_bias) {
  const std::size_t first = first_normalized(input, normalized.values.size());
  const LayerNormGradTensors tensors{grad_output, input, mean, rstd, weight, grad_input, grad_weight, grad_bias};
  return {[=] { layer_norm_backward(tensors, first, 0, Spread::kReciprocalDeviation); }};
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

ACLNN_OPERATOR(aclnnLayerNorm, host::layer_norm_plan)
ACLNN_OPERATOR(aclnnLayerNormBackward, host::layer_norm_backward_plan)
ACLNN_OPERATOR(aclnnRmsNorm, host::rms_norm)
ACLNN_OPERATOR(aclnnRmsNormGrad, host::rms_norm_backward)
