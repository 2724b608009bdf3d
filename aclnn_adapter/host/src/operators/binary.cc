// Functions of two or three operands, tensors or scalars.
#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/functions.h"

namespace host {
namespace {

template <typename Function>
void apply(const Tensor &self, const Tensor &other, const Tensor &out) {
  const Compute type = working_type<Function>(meet(compute_type(self.dtype), compute_type(other.dtype)));
  map_in(type, [](auto a, auto b) { return Function::of(a, b); }, out, self, other);
}

// The scalar second.
template <typename Function>
void apply(const Tensor &self, const Scalar &other, const Tensor &out) {
  const Compute type = working_type<Function>(meet_scalar(compute_type(self.dtype), other.dtype));
  with_compute(type, [&](auto zero) {
    using C = decltype(zero);
    map<C>([b = other.as<C>()](C a) { return Function::of(a, b); }, out, self);
  });
}

template <typename Function, typename Other>
Plan binary(const Tensor &self, const Other &other, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] { apply<Function>(self, other, out); }};
}

template <typename Function, typename Other>
Plan in_place(Tensor &self, const Other &other) {
  return {[&] { apply<Function>(self, other, self); }};
}

// The scalar first.
template <typename Function>
Plan scalar_first(const Scalar &self, const Tensor &other, Tensor &out) {
  check_broadcast(out, {&other});
  return {[&] {
    with_compute(meet_scalar(compute_type(other.dtype), self.dtype), [&](auto zero) {
      using C = decltype(zero);
      map<C>([a = self.as<C>()](C b) { return Function::of(a, b); }, out, other);
    });
  }};
}

// self + sign * alpha * other
template <int sign>
void add_scaled(const Tensor &self, const Tensor &other, const Scalar &alpha, const Tensor &out) {
  with_compute(meet(compute_type(self.dtype), compute_type(other.dtype)), [&](auto zero) {
    using C = decltype(zero);
    const C factor = sign * alpha.as<C>();
    if (factor == C{1}) return map<C>([](C a, C b) { return a + b; }, out, self, other);
    map<C>([factor](C a, C b) { return a + factor * b; }, out, self, other);
  });
}

template <int sign>
void add_scaled(const Tensor &self, const Scalar &other, const Scalar &alpha, const Tensor &out) {
  with_compute(meet_scalar(compute_type(self.dtype), other.dtype), [&](auto zero) {
    using C = decltype(zero);
    const C term = sign * alpha.as<C>() * other.as<C>();
    map<C>([term](C a) { return a + term; }, out, self);
  });
}

template <int sign, typename Other>
Plan add(const Tensor &self, const Other &other, const Scalar &alpha, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] { add_scaled<sign>(self, other, alpha, out); }};
}

template <int sign, typename Other>
Plan add_in_place(Tensor &self, const Other &other, const Scalar &alpha) {
  return {[&] { add_scaled<sign>(self, other, alpha, self); }};
}

// Division with rounding: 0 none, 1 towards zero, 2 down.
template <typename Other>
void divide_rounding(const Tensor &self, const Other &other, int mode, const Tensor &out) {
  if (mode == 0) return apply<Div>(self, other, out);
  if (mode == 1) return apply<Truncate>(self, other, out);
  apply<FloorDivide>(self, other, out);
}

template <typename Other>
Plan div_mod(const Tensor &self, const Other &other, std::int32_t mode, Tensor &out) {
  require(mode >= 0 && mode <= 2, kInvalid, "aclnnDivMod: mode ", mode, " is not 0, 1 or 2");
  check_broadcast(out, {&self});
  return {[&, mode] { divide_rounding(self, other, mode, out); }};
}

Plan where(const Tensor &condition, const Tensor &self, const Tensor &other, Tensor &out) {
  check_broadcast(out, {&condition, &self, &other});
  return {[&] {
    const Compute type = meet(compute_type(self.dtype), compute_type(other.dtype));
    map_in(type, [](auto c, auto a, auto b) { return c != decltype(c){} ? a : b; }, out, condition, self, other);
  }};
}

Plan masked_fill_scalar(Tensor &self, const Tensor &mask, const Scalar &value) {
  check_broadcast(self, {&mask});
  return {[&] {
    with_compute(compute_type(self.dtype), [&](auto zero) {
      using C = decltype(zero);
      map<C>([v = value.as<C>()](C a, C m) { return m != C{} ? v : a; }, self, self, mask);
    });
  }};
}

Plan masked_fill_tensor(Tensor &self, const Tensor &mask, const Tensor &value) {
  check_broadcast(self, {&mask, &value});
  return {[&] {
    map_in(compute_type(self.dtype), [](auto a, auto m, auto v) { return m != decltype(m){} ? v : a; }, self, self,
           mask, value);
  }};
}

Plan clamp(const Tensor &self, const Scalar *low, const Scalar *high, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&self, &out, low, high] {
    with_compute(compute_type(self.dtype), [&](auto zero) {
      using C = decltype(zero);
      map<C>(
        [&](C x) {
          if (low != nullptr && x < low->as<C>()) x = low->as<C>();
          return high != nullptr && x > high->as<C>() ? high->as<C>() : x;
        },
        out, self);
    });
  }};
}

Plan clamp_min(const Tensor &self, const Scalar &low, Tensor &out) { return clamp(self, &low, nullptr, out); }

// self + value * first (* or /) second
template <typename Function>
Plan add_compound(const Tensor &self, const Tensor &first, const Tensor &second, const Scalar &value, Tensor &out) {
  check_broadcast(out, {&self, &first, &second});
  return {[&] {
    with_compute(floating(compute_type(self.dtype)), [&](auto zero) {
      using C = decltype(zero);
      map<C>([v = value.as<C>()](C a, C b, C c) { return Compound<Function>::of(a, b, c, v); }, out, self, first, second);
    });
  }};
}

template <typename Function>
Plan add_compound_in_place(Tensor &self, const Tensor &first, const Tensor &second, const Scalar &value) {
  return add_compound<Function>(self, first, second, value, self);
}

Plan lerp_scalar(const Tensor &self, const Tensor &end, const Scalar &weight, Tensor &out) {
  check_broadcast(out, {&self, &end});
  return {[&] {
    with_compute(floating(compute_type(self.dtype)), [&](auto zero) {
      using C = decltype(zero);
      map<C>([w = weight.as<C>()](C a, C b) { return Lerp::of(a, b, w); }, out, self, end);
    });
  }};
}

Plan lerp_scalar_in_place(Tensor &self, const Tensor &end, const Scalar &weight) {
  return lerp_scalar(self, end, weight, self);
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnAdd, host::add<1, host::Tensor>)
ACLNN_OPERATOR(aclnnAdds, host::add<1, host::Scalar>)
ACLNN_OPERATOR(aclnnSub, host::add<-1, host::Tensor>)
ACLNN_OPERATOR(aclnnSubs, host::add<-1, host::Scalar>)
ACLNN_OPERATOR(aclnnInplaceAdd, host::add_in_place<1, host::Tensor>)
ACLNN_OPERATOR(aclnnInplaceAdds, host::add_in_place<1, host::Scalar>)
ACLNN_OPERATOR(aclnnInplaceSub, host::add_in_place<-1, host::Tensor>)
ACLNN_OPERATOR(aclnnInplaceSubs, host::add_in_place<-1, host::Scalar>)
ACLNN_OPERATOR(aclnnMul, host::binary<host::Mul, host::Tensor>)
ACLNN_OPERATOR(aclnnMuls, host::binary<host::Mul, host::Scalar>)
ACLNN_OPERATOR(aclnnInplaceMul, host::in_place<host::Mul, host::Tensor>)
ACLNN_OPERATOR(aclnnInplaceMuls, host::in_place<host::Mul, host::Scalar>)
ACLNN_OPERATOR(aclnnDiv, host::binary<host::Div, host::Tensor>)
ACLNN_OPERATOR(aclnnDivs, host::binary<host::Div, host::Scalar>)
ACLNN_OPERATOR(aclnnInplaceDiv, host::in_place<host::Div, host::Tensor>)
ACLNN_OPERATOR(aclnnInplaceDivs, host::in_place<host::Div, host::Scalar>)
ACLNN_OPERATOR(aclnnDivMod, host::div_mod<host::Tensor>)
ACLNN_OPERATOR(aclnnDivMods, host::div_mod<host::Scalar>)
ACLNN_OPERATOR(aclnnFloorDivide, host::binary<host::FloorDivide, host::Tensor>)
ACLNN_OPERATOR(aclnnFloorDivides, host::binary<host::FloorDivide, host::Scalar>)
ACLNN_OPERATOR(aclnnRemainderTensorTensor, host::binary<host::Remainder, host::Tensor>)
ACLNN_OPERATOR(aclnnRemainderTensorScalar, host::binary<host::Remainder, host::Scalar>)
ACLNN_OPERATOR(aclnnMaximum, host::binary<host::Maximum, host::Tensor>)
ACLNN_OPERATOR(aclnnMinimum, host::binary<host::Minimum, host::Tensor>)
ACLNN_OPERATOR(aclnnPowTensorTensor, host::binary<host::Pow, host::Tensor>)
ACLNN_OPERATOR(aclnnPowTensorScalar, host::binary<host::Pow, host::Scalar>)
ACLNN_OPERATOR(aclnnInplacePowTensorScalar, host::in_place<host::Pow, host::Scalar>)
ACLNN_OPERATOR(aclnnPowScalarTensor, host::scalar_first<host::Pow>)
ACLNN_OPERATOR(aclnnLogicalAnd, host::binary<host::And, host::Tensor>)
ACLNN_OPERATOR(aclnnLogicalOr, host::binary<host::Or, host::Tensor>)
ACLNN_OPERATOR(aclnnEqTensor, host::binary<host::Equal, host::Tensor>)
ACLNN_OPERATOR(aclnnEqScalar, host::binary<host::Equal, host::Scalar>)
ACLNN_OPERATOR(aclnnNeTensor, host::binary<host::NotEqual, host::Tensor>)
ACLNN_OPERATOR(aclnnNeScalar, host::binary<host::NotEqual, host::Scalar>)
ACLNN_OPERATOR(aclnnLtTensor, host::binary<host::Less, host::Tensor>)
ACLNN_OPERATOR(aclnnLtScalar, host::binary<host::Less, host::Scalar>)
ACLNN_OPERATOR(aclnnLeTensor, host::binary<host::LessEqual, host::Tensor>)
ACLNN_OPERATOR(aclnnLeScalar, host::binary<host::LessEqual, host::Scalar>)
ACLNN_OPERATOR(aclnnGtTensor, host::binary<host::Greater, host::Tensor>)
ACLNN_OPERATOR(aclnnGtScalar, host::binary<host::Greater, host::Scalar>)
ACLNN_OPERATOR(aclnnGeTensor, host::binary<host::GreaterEqual, host::Tensor>)
ACLNN_OPERATOR(aclnnGeScalar, host::binary<host::GreaterEqual, host::Scalar>)
ACLNN_OPERATOR(aclnnSWhere, host::where)
ACLNN_OPERATOR(aclnnInplaceMaskedFillScalar, host::masked_fill_scalar)
ACLNN_OPERATOR(aclnnInplaceMaskedFillTensor, host::masked_fill_tensor)
ACLNN_OPERATOR(aclnnClamp, host::clamp)
ACLNN_OPERATOR(aclnnClampMin, host::clamp_min)
ACLNN_OPERATOR(aclnnAddcmul, host::add_compound<host::Mul>)
ACLNN_OPERATOR(aclnnAddcdiv, host::add_compound<host::Div>)
ACLNN_OPERATOR(aclnnLerps, host::lerp_scalar)
ACLNN_OPERATOR(aclnnInplaceAddcmul, host::add_compound_in_place<host::Mul>)
ACLNN_OPERATOR(aclnnInplaceAddcdiv, host::add_compound_in_place<host::Div>)
ACLNN_OPERATOR(aclnnInplaceLerps, host::lerp_scalar_in_place)
