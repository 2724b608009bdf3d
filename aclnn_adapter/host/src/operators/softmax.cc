// Softmax, its logarithm, and the losses on top of it.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/operator.h"
#include "operators/lines.h"

namespace host {
namespace {

std::size_t axis_in(const Tensor &tensor, std::int64_t axis) {
  return tensor.rank() == 0 ? 0 : axis_of(axis, tensor.rank());
}

void check_like(const Tensor &one, const Tensor &other) {
  require(one.shape == other.shape, kInvalid, one.describe(), " and ", other.describe(), " differ in shape");
}

// Softmax, or its logarithm, of a line in place.
template <bool logarithm>
void softmax_line(Line &x) {
  const float largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float value : x) sum += std::exp(value - largest);
  const auto total = static_cast<float>(sum);
  const float log_total = std::log(total);
  for (float &value : x) value = logarithm ? value - largest - log_total : std::exp(value - largest) / total;
}

template <bool logarithm>
Plan softmax(const Tensor &self, std::int64_t axis, Tensor &out) {
  check_like(self, out);
  return {[&, counted = axis_in(self, axis)] {
    const Lines from(self, counted), to(out, counted);
    for_each_line(from.count(), [&](std::int64_t line) {
      Line x = from.read(line);
      softmax_line<logarithm>(x);
      to.write(line, x);
    });
  }};
}

// softmax: y (g - sum(g y)); log_softmax: g - exp(y) sum(g)
template <bool logarithm>
Plan softmax_backward(const Tensor &grad_output, const Tensor &output, std::int64_t axis, Tensor &grad_input) {
  check_like(grad_output, output);
  check_like(grad_output, grad_input);
  return {[&, counted = axis_in(output, axis)] {
    const Lines grads(grad_output, counted), outputs(output, counted), results(grad_input, counted);
    for_each_line(grads.count(), [&](std::int64_t line) {
      Line g = grads.read(line);
      const Line y = outputs.read(line);
      double sum = 0;
      for (std::size_t i = 0; i < g.size(); ++i) sum += static_cast<double>(g[i]) * (logarithm ? 1.0F : y[i]);
      const auto total = static_cast<float>(sum);
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] = logarithm ? g[i] - std::exp(y[i]) * total : y[i] * (g[i] - total);
      }
      results.write(line, g);
    });
  }};
}

enum LossReduction : std::int64_t { kNone = 0, kMean = 1, kSum = 2 };

// The class of each sample and its weight; samples of the ignored class weigh nothing.
struct Targets {
  std::vector<std::int64_t> classes;
  Line weights;

  Targets(const Tensor &target, const Tensor &weight, std::int64_t ignored) {
    const Line class_weights = Lines(weight, 0).read(0);
    classes.resize(static_cast<std::size_t>(target.size()));
    load(target, 0, target.rank() == 0 ? 1 : target.strides[0], target.size(), classes.data());
    for (std::int64_t c : classes) {
      require(c == ignored || (c >= 0 && c < weight.size()), kRuntimeError, "aclnnNLLLoss: class ", c, " of ",
              weight.size());
      weights.push_back(c == ignored ? 0.0F : class_weights[static_cast<std::size_t>(c)]);
    }
  }

  float total() const { return std::accumulate(weights.begin(), weights.end(), 0.0F); }
};

Plan nll_loss(const Tensor &self, const Tensor &target, const Tensor &weight, std::int64_t reduction,
              std::int64_t ignored, Tensor &out, Tensor &total_weight) {
  require(self.rank() == 2 && target.size() == self.shape[0] && weight.size() == self.shape[1], kInvalid,
          "aclnnNLLLoss: ", self.describe(), " with ", target.describe(), " and ", weight.describe());
  return {[&, reduction, ignored] {
    const Targets targets(target, weight, ignored);
    Line losses;
    for (std::size_t i = 0; i < targets.classes.size(); ++i) {
      float value = 0;
      if (targets.weights[i] != 0) {
        load(self, static_cast<std::int64_t>(i) * self.strides[0] + targets.classes[i] * self.strides[1], 1, 1, &value);
      }
      losses.push_back(-targets.weights[i] * value);
    }
    const float total = targets.total();
    store(&total, total_weight, 0, 1, 1);
    if (reduction == kNone) return Lines(out, 0).write(0, losses);
    auto sum = static_cast<float>(std::accumulate(losses.begin(), losses.end(), 0.0));
    if (reduction == kMean) sum /= total;
    store(&sum, out, 0, 1, 1);
  }};
}

Plan nll_loss_backward(const Tensor &grad_output, const Tensor &self, const Tensor &target, const Tensor &weight,
                       std::int64_t reduction, std::int64_t ignored, const Tensor &total_weight, Tensor &out) {
  check_like(self, out);
  return {[&, reduction, ignored] {
    const Targets targets(target, weight, ignored);
    float total = 1;
    if (reduction == kMean) load(total_weight, 0, 1, 1, &total);
    const std::int64_t grad_step = reduction == kNone && grad_output.rank() > 0 ? grad_output.strides[0] : 0;
    const Lines rows(out, 1);
    for_each_line(rows.count(), [&](std::int64_t i) {
      const auto sample = static_cast<std::size_t>(i);
      float grad = 0;
      load(grad_output, i * grad_step, 1, 1, &grad);
      Line row(static_cast<std::size_t>(rows.length()), 0.0F);
      if (targets.weights[sample] != 0) {
        row[static_cast<std::size_t>(targets.classes[sample])] = -targets.weights[sample] * grad / total;
      }
      rows.write(i, row);
    });
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnSoftmax, host::softmax<false>)
ACLNN_OPERATOR(aclnnLogSoftmax, host::softmax<true>)
ACLNN_OPERATOR(aclnnSoftmaxBackward, host::softmax_backward<false>)
ACLNN_OPERATOR(aclnnLogSoftmaxBackward, host::softmax_backward<true>)
ACLNN_OPERATOR(aclnnNLLLoss, host::nll_loss)
ACLNN_OPERATOR(aclnnNLLLossBackward, host::nll_loss_backward)
