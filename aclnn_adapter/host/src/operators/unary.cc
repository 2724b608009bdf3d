// Functions of one tensor, and casts, copies and fills.
#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/functions.h"
#include "operators/moving.h"

namespace host {
namespace {

template <typename Function>
Plan same_type(const Tensor &self, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] { map_in(compute_type(self.dtype), [](auto x) { return Function::of(x); }, out, self); }};
}

template <typename Function>
Plan to_floating(const Tensor &self, Tensor &out) {
  check_broadcast(out, {&self});
  const auto apply = [](auto x) {
    if constexpr (std::is_integral_v<decltype(x)>) {
      return x;  // never reached
    } else {
      return Function::of(x);
    }
  };
  return {[&, apply] { map_in(floating(compute_type(self.dtype)), apply, out, self); }};
}

template <typename Function>
Plan in_place(Tensor &self) {
  return same_type<Function>(self, self);
}

template <typename Function>
Plan floating_in_place(Tensor &self) {
  return to_floating<Function>(self, self);
}

Plan cast(const Tensor &self, aclDataType dtype, Tensor &out) {
  require(out.dtype == dtype && out.shape == self.shape, kInvalid, "aclnnCast: ", self.describe(), " to ",
          dtype_name(dtype), " gives no ", out.describe());
  return {[&] { convert(self, out); }};
}

Plan copy_into(Tensor &self, const Tensor &source) {
  check_broadcast(self, {&source});
  return {[&] { convert(source, self); }};
}

void fill(const Tensor &out, const Scalar &value) {
  with_compute(compute_type(out.dtype), [&](auto zero) {
    using C = decltype(zero);
    map<C>([number = value.as<C>()] { return number; }, out);
  });
}

Plan fill_scalar(Tensor &self, const Scalar &value) {
  return {[&] { fill(self, value); }};
}

Plan fill_tensor(Tensor &self, const Tensor &value) { return copy_into(self, value); }

Plan zero(Tensor &self) {
  return {[&] { fill(self, {ACL_INT64, 0, 0}); }};
}

Plan one(Tensor &self) {
  return {[&] { fill(self, {ACL_INT64, 1, 1}); }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnExp, host::to_floating<host::Exp>)
ACLNN_OPERATOR(aclnnLog, host::to_floating<host::Log>)
ACLNN_OPERATOR(aclnnSqrt, host::to_floating<host::Sqrt>)
ACLNN_OPERATOR(aclnnRsqrt, host::to_floating<host::Rsqrt>)
ACLNN_OPERATOR(aclnnReciprocal, host::to_floating<host::Reciprocal>)
ACLNN_OPERATOR(aclnnSigmoid, host::to_floating<host::Sigmoid>)
ACLNN_OPERATOR(aclnnSilu, host::to_floating<host::Silu>)
ACLNN_OPERATOR(aclnnTanh, host::to_floating<host::Tanh>)
ACLNN_OPERATOR(aclnnErf, host::to_floating<host::Erf>)
ACLNN_OPERATOR(aclnnSin, host::to_floating<host::Sin>)
ACLNN_OPERATOR(aclnnCos, host::to_floating<host::Cos>)
ACLNN_OPERATOR(aclnnFloor, host::to_floating<host::Floor>)
ACLNN_OPERATOR(aclnnCeil, host::to_floating<host::Ceil>)
ACLNN_OPERATOR(aclnnRound, host::to_floating<host::Round>)
ACLNN_OPERATOR(aclnnIsFinite, host::to_floating<host::IsFinite>)
ACLNN_OPERATOR(aclnnNeg, host::same_type<host::Neg>)
ACLNN_OPERATOR(aclnnAbs, host::same_type<host::Abs>)
ACLNN_OPERATOR(aclnnSquare, host::same_type<host::Square>)
ACLNN_OPERATOR(aclnnRelu, host::same_type<host::Relu>)
ACLNN_OPERATOR(aclnnSign, host::same_type<host::Sign>)
ACLNN_OPERATOR(aclnnLogicalNot, host::same_type<host::LogicalNot>)
ACLNN_OPERATOR(aclnnInplaceExp, host::floating_in_place<host::Exp>)
ACLNN_OPERATOR(aclnnInplaceSqrt, host::floating_in_place<host::Sqrt>)
ACLNN_OPERATOR(aclnnInplaceRsqrt, host::floating_in_place<host::Rsqrt>)
ACLNN_OPERATOR(aclnnInplaceReciprocal, host::floating_in_place<host::Reciprocal>)
ACLNN_OPERATOR(aclnnInplaceSigmoid, host::floating_in_place<host::Sigmoid>)
ACLNN_OPERATOR(aclnnInplaceRelu, host::in_place<host::Relu>)
ACLNN_OPERATOR(aclnnInplaceNeg, host::in_place<host::Neg>)
ACLNN_OPERATOR(aclnnCast, host::cast)
ACLNN_OPERATOR(aclnnInplaceCopy, host::copy_into)
ACLNN_OPERATOR(aclnnInplaceFillScalar, host::fill_scalar)
ACLNN_OPERATOR(aclnnInplaceFillTensor, host::fill_tensor)
ACLNN_OPERATOR(aclnnInplaceZero, host::zero)
ACLNN_OPERATOR(aclnnInplaceOne, host::one)
