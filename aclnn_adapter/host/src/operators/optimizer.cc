// Fused optimizer steps.
#include <cmath>

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

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnApplyAdamWV2, host::adam_w)
