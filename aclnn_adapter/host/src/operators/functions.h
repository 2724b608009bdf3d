// Functions of elements. T is one of the types that the engine computes in.
#pragma once

#include <cmath>
#include <type_traits>

#include "operators/engine.h"

namespace host {

// What makes floating-point numbers of integers; everything else leaves integers integers.
struct Floating {};

template <typename Function>
Compute working_type(Compute met) {
  return std::is_base_of_v<Floating, Function> ? floating(met) : met;
}

// Functions of one element.
struct Exp : Floating { template <typename T> static auto of(T x) { return std::exp(x); } };
struct Log : Floating { template <typename T> static auto of(T x) { return std::log(x); } };
struct Sqrt : Floating { template <typename T> static auto of(T x) { return std::sqrt(x); } };
struct Rsqrt : Floating { template <typename T> static auto of(T x) { return T{1} / std::sqrt(x); } };
struct Reciprocal : Floating { template <typename T> static auto of(T x) { return T{1} / x; } };
struct Sigmoid : Floating { template <typename T> static auto of(T x) { return T{1} / (T{1} + std::exp(-x)); } };
struct Silu : Floating { template <typename T> static auto of(T x) { return x / (T{1} + std::exp(-x)); } };
struct Tanh : Floating { template <typename T> static auto of(T x) { return std::tanh(x); } };
struct Erf : Floating { template <typename T> static auto of(T x) { return std::erf(x); } };
struct Sin : Floating { template <typename T> static auto of(T x) { return std::sin(x); } };
struct Cos : Floating { template <typename T> static auto of(T x) { return std::cos(x); } };
struct Floor : Floating { template <typename T> static auto of(T x) { return std::floor(x); } };
struct Ceil : Floating { template <typename T> static auto of(T x) { return std::ceil(x); } };
struct Round : Floating { template <typename T> static auto of(T x) { return std::nearbyint(x); } };
struct IsFinite { template <typename T> static T of(T x) { return static_cast<T>(std::isfinite(x)); } };
struct Neg { template <typename T> static T of(T x) { return -x; } };
struct Abs { template <typename T> static T of(T x) { return x < T{} ? -x : x; } };
struct Square { template <typename T> static T of(T x) { return x * x; } };
struct Relu { template <typename T> static T of(T x) { return x < T{} ? T{} : x; } };
struct Sign { template <typename T> static T of(T x) { return static_cast<T>((x > T{}) - (x < T{})); } };
struct LogicalNot { template <typename T> static T of(T x) { return static_cast<T>(x == T{}); } };

// Functions of two elements.
struct Add { template <typename T> static T of(T a, T b) { return a + b; } };
struct Sub { template <typename T> static T of(T a, T b) { return a - b; } };
struct Mul { template <typename T> static T of(T a, T b) { return a * b; } };
struct Div : Floating { template <typename T> static T of(T a, T b) { return a / b; } };
struct Maximum { template <typename T> static T of(T a, T b) { return a != a || a > b ? a : b; } };
struct Minimum { template <typename T> static T of(T a, T b) { return a != a || a < b ? a : b; } };
struct Pow { template <typename T> static T of(T a, T b) { return static_cast<T>(std::pow(a, b)); } };
struct And { template <typename T> static T of(T a, T b) { return static_cast<T>(a != T{} && b != T{}); } };
struct Or { template <typename T> static T of(T a, T b) { return static_cast<T>(a != T{} || b != T{}); } };
struct Equal { template <typename T> static T of(T a, T b) { return static_cast<T>(a == b); } };
struct NotEqual { template <typename T> static T of(T a, T b) { return static_cast<T>(a != b); } };
struct Less { template <typename T> static T of(T a, T b) { return static_cast<T>(a < b); } };
struct LessEqual { template <typename T> static T of(T a, T b) { return static_cast<T>(a <= b); } };
struct Greater { template <typename T> static T of(T a, T b) { return static_cast<T>(a > b); } };
struct GreaterEqual { template <typename T> static T of(T a, T b) { return static_cast<T>(a >= b); } };

struct FloorDivide {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
    } else {
      return std::floor(a / b);
    }
  }
};

struct Truncate {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return b == 0 ? 0 : a / b;
    } else {
      return std::trunc(a / b);
    }
  }
};

struct Remainder {
  template <typename T>
  static T of(T a, T b) {
    return a - FloorDivide::of(a, b) * b;
  }
};

// Functions of elements and a number that goes with whole tensors, the last argument.
struct Lerp : Floating { template <typename T> static T of(T a, T b, T w) { return a + w * (b - a); } };

template <typename Function>
struct Scaled {
  template <typename T>
  static T of(T a, T b, T alpha) {
    return Function::of(a, alpha * b);
  }
};

template <typename Function>
struct Swapped {
  template <typename T>
  static T of(T a, T number) {
    return Function::of(number, a);
  }
};

template <typename Function>
struct Compound : Floating {
  template <typename T>
  static T of(T a, T b, T c, T value) {
    return a + value * Function::of(b, c);
  }
};

}  // namespace host
