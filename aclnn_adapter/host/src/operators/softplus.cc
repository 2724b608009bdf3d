// Softplus, log(1 + exp(beta x)) / beta, which is x itself where beta x lies above a threshold.
#include <cmath>

#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

Plan softplus(const Tensor &self, const Scalar &beta, const Scalar &threshold, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] {
    const auto function = [b = beta.as<float>(), limit = threshold.as<float>()](float x) {
      return b * x > limit ? x : std::log1p(std::exp(b * x)) / b;
    };
    map<float>(function, out, self);
  }};
}

Plan softplus_backward(const Tensor &grad, const Tensor &self, const Scalar &beta, const Scalar &threshold,
                       Tensor &out) {
  check_broadcast(out, {&grad, &self});
  return {[&] {
    const auto function = [b = beta.as<float>(), limit = threshold.as<float>()](float g, float x) {
      return b * x > limit ? g : g / (1 + std::exp(-b * x));
    };
    map<float>(function, out, grad, self);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnSoftplus, host::softplus)
ACLNN_OPERATOR(aclnnSoftplusBackward, host::softplus_backward)
