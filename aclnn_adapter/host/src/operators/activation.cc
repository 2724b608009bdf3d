// Activation functions with parameters, and the derivatives of activation functions.
#include <cmath>
#include <string_view>

#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

constexpr float kSqrtHalf = 0.70710678118654752F;      // sqrt(1/2)
constexpr float kSqrtTwoOverPi = 0.79788456080286536F;  // sqrt(2/pi)
constexpr float kCubic = 0.044715F;

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

struct GeluExact {
  static float of(float x) { return 0.5F * x * (1 + std::erf(x * kSqrtHalf)); }
  static float slope(float x) {
    return 0.5F * (1 + std::erf(x * kSqrtHalf)) + x * 0.5F * kSqrtTwoOverPi * std::exp(-0.5F * x * x);
  }
};

struct GeluTanh {
  static float inner(float x) { return std::tanh(kSqrtTwoOverPi * (x + kCubic * x * x * x)); }
  static float of(float x) { return 0.5F * x * (1 + inner(x)); }
  static float slope(float x) {
    const float t = inner(x);
    return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
  }
};

// Derivatives in terms of the input ...
struct Silu {
  static float slope(float x) {
    const float s = sigmoid(x);
    return s * (1 + x * (1 - s));
  }
};

// ... and in terms of the output.
struct SigmoidOutput { static float slope(float y) { return y * (1 - y); } };
struct TanhOutput { static float slope(float y) { return 1 - y * y; } };

template <typename Function>
void apply(const Tensor &self, const Tensor &out) {
  map<float>([](float x) { return Function::of(x); }, out, self);
}

template <typename Function>
void apply_slope(const Tensor &grad, const Tensor &at, const Tensor &out) {
  map<float>([](float g, float x) { return g * Function::slope(x); }, out, grad, at);
}

template <typename Function>
Plan backward(const Tensor &grad, const Tensor &at, Tensor &out) {
  check_broadcast(out, {&grad, &at});
  return {[&] { apply_slope<Function>(grad, at, out); }};
}

Plan gelu(const Tensor &self, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] { apply<GeluTanh>(self, out); }};
}

// Approximation 0 is exact, 1 is by tanh; the backward form has them as words.
Plan gelu_v2(const Tensor &self, std::int64_t approximation, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&, approximation] { approximation == 0 ? apply<GeluExact>(self, out) : apply<GeluTanh>(self, out); }};
}

Plan gelu_backward_v2(const Tensor &grad, const Tensor &self, const char *approximation, Tensor &out) {
  check_broadcast(out, {&grad, &self});
  const bool exact = approximation == nullptr || std::string_view(approximation) == "none";
  return {[&, exact] {
    exact ? apply_slope<GeluExact>(grad, self, out) : apply_slope<GeluTanh>(grad, self, out);
  }};
}

Plan threshold_backward(const Tensor &grad, const Tensor &self, const Scalar &threshold, Tensor &out) {
  check_broadcast(out, {&grad, &self});
  return {[&] {
    map<float>([t = threshold.as<float>()](float g, float x) { return x > t ? g : 0.0F; }, out, grad, self);
  }};
}

// The two halves of an axis: silu of the first times the second.
struct Halves {
  Tensor first, second;

  Halves(const Tensor &whole, std::size_t axis) : first(whole), second(whole) {
    first.shape[axis] /= 2;
    second.shape[axis] /= 2;
    second.offset += first.shape[axis] * whole.strides[axis];
  }
};

Plan swiglu(const Tensor &x, std::int64_t axis, Tensor &out) {
  const std::size_t counted = axis_of(axis, x.rank());
  return {[&, counted] {
    const Halves halves(x, counted);
    map<float>([](float a, float b) { return a * sigmoid(a) * b; }, out, halves.first, halves.second);
  }};
}

Plan swiglu_backward(const Tensor &grad, const Tensor &x, std::int64_t axis, Tensor &out) {
  const std::size_t counted = axis_of(axis, x.rank());
  return {[&, counted] {
    const Halves in(x, counted), results(out, counted);
    map<float>([](float g, float a, float b) { return g * b * Silu::slope(a); }, results.first, grad, in.first,
               in.second);
    map<float>([](float g, float a) { return g * a * sigmoid(a); }, results.second, grad, in.first);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnGelu, host::gelu)
ACLNN_OPERATOR(aclnnGeluV2, host::gelu_v2)
ACLNN_OPERATOR(aclnnGeluBackward, host::backward<host::GeluTanh>)
ACLNN_OPERATOR(aclnnGeluBackwardV2, host::gelu_backward_v2)
ACLNN_OPERATOR(aclnnSiluBackward, host::backward<host::Silu>)
ACLNN_OPERATOR(aclnnSigmoidBackward, host::backward<host::SigmoidOutput>)
ACLNN_OPERATOR(aclnnTanhBackward, host::backward<host::TanhOutput>)
ACLNN_OPERATOR(aclnnThresholdBackward, host::threshold_backward)
ACLNN_OPERATOR(aclnnSwiGlu, host::swiglu)
ACLNN_OPERATOR(aclnnSwiGluGrad, host::swiglu_backward)
