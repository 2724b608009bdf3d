// Fused optimizer steps.
#include <cmath>

#include "framework/dense.h"
#include "framework/legacy.h"
#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

// AdamW: decoupled weight decay, bias-corrected moments. `step` counts from 1.
Plan adam_w(Tensor &parameter, Tensor &moment, Tensor &square, Tensor *largest, const Tensor &grad, const Tensor &step,
            float rate, float beta1, float beta2, float decay, float eps, bool amsgrad, bool maximize) {
  require(!amsgrad && largest == nullptr, kInvalid, "aclnnApplyAdamWV2: amsgrad is not served by the host CANN");
  return {[&, rate, beta1, beta2, decay, eps, maximize] {
    double count = 0;
    load(step, 0, 1, 1, &count);
    const double sign = maximize ? -1 : 1;
    const double step_size = rate / (1 - std::pow(static_cast<double>(beta1), count));
    const double correction = 1 - std::pow(static_cast<double>(beta2), count);
    map<double>([=](double m, double g) { return m * beta1 + sign * g * (1.0 - beta1); }, moment, moment, grad);
    map<double>([=](double v, double g) { return v * beta2 + g * g * (1.0 - beta2); }, square, square, grad);
    map<double>(
      [=](double p, double m, double v) {
        return p * (1 - static_cast<double>(rate) * decay) - step_size * m / (std::sqrt(v / correction) + eps);
      },
      parameter, parameter, moment, square);
  }};
}

// One step of Adam with decoupled weight decay as MindSpore's graphs fuse it, without bias correction. The inputs are
// the gradient, both moments, the parameter, and then numbers; the Assign form updates its inputs in place.
template <bool assign>
void adam_apply_one_with_decay(const LegacyCall &call) {
  const Tensor &grad = call.input(0), &square = call.input(1), &moment = call.input(2), &parameter = call.input(3);
  double rate = 0, beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0, decay = 0, eps = 0;
  std::size_t next = 4;
  for (double *number : {&rate, &beta1, &one_minus_beta1, &beta2, &one_minus_beta2, &decay, &eps}) {
    load(call.input(next++), 0, 1, 1, number);
  }
  const Tensor &new_square = call.output(0), &new_moment = call.output(1), &new_parameter = call.output(2);
  map<double>([=](double v, double g) { return beta2 * v + one_minus_beta2 * g * g; }, new_square, square, grad);
  map<double>([=](double m, double g) { return beta1 * m + one_minus_beta1 * g; }, new_moment, moment, grad);
  map<double>([=](double p, double m, double v) { return p - rate * (m / (std::sqrt(v) + eps) + decay * p); },
              new_parameter, parameter, new_moment, new_square);
  if (!assign) return;
  for (std::size_t i = 0; i < 3; ++i) {
    if (call.output(i).data != call.input(i + 1).data) copy_elements(call.output(i), call.input(i + 1));
  }
}

// Adam as its paper has it: parameter, both moments, beta1 and beta2 to the power of the step, rate, beta1, beta2, eps,
// gradient. All three are updated in place.
void apply_adam(const LegacyCall &call) {
  const Tensor &parameter = call.input(0), &moment = call.input(1), &square = call.input(2), &grad = call.input(9);
  double power1 = 0, power2 = 0, rate = 0, beta1 = 0, beta2 = 0, eps = 0;
  std::size_t next = 3;
  for (double *number : {&power1, &power2, &rate, &beta1, &beta2, &eps}) load(call.input(next++), 0, 1, 1, number);
  const double step = rate * std::sqrt(1 - power2) / (1 - power1);
  map<double>([=](double m, double g) { return m + (g - m) * (1 - beta1); }, moment, moment, grad);
  map<double>([=](double v, double g) { return v + (g * g - v) * (1 - beta2); }, square, square, grad);
  map<double>([=](double p, double m, double v) { return p - step * m / (std::sqrt(v) + eps); }, parameter, parameter,
              moment, square);
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    if (call.output(i).data != call.input(i).data) copy_elements(call.input(i), call.output(i));
  }
}

// Gradient descent with momentum: parameter, accumulated gradient, rate, gradient, momentum. The first two are updated
// in place.
void apply_momentum(const LegacyCall &call) {
  const Tensor &parameter = call.input(0), &sum = call.input(1), &grad = call.input(3);
  double rate = 0, momentum = 0;
  load(call.input(2), 0, 1, 1, &rate);
  load(call.input(4), 0, 1, 1, &momentum);
  map<double>([=](double a, double g) { return a * momentum + g; }, sum, sum, grad);
  const bool ahead = call.number("use_nesterov", 0) != 0;
  map<double>([=](double p, double a, double g) { return p - rate * (ahead ? g + a * momentum : a); }, parameter,
              parameter, sum, grad);
  if (!call.outputs.empty() && call.output().data != parameter.data) copy_elements(parameter, call.output());
}

[[gnu::constructor]] void serve_all() {
  serve("ApplyMomentum", apply_momentum);
  serve("ApplyAdamD", apply_adam);
  serve("AdamApplyOneWithDecay", adam_apply_one_with_decay<false>);
  serve("AdamApplyOneWithDecayAssign", adam_apply_one_with_decay<true>);
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnApplyAdamWV2, host::adam_w)
