// Bit by bit: integers, and truth values.
#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

struct BitOr { static std::int64_t of(std::int64_t a, std::int64_t b) { return a | b; } };
struct BitAnd { static std::int64_t of(std::int64_t a, std::int64_t b) { return a & b; } };
struct BitXor { static std::int64_t of(std::int64_t a, std::int64_t b) { return a ^ b; } };

void check(const Tensor &self) {
  require(!is_floating(self.dtype), kInvalid, "a bitwise operator on ", self.describe());
}

template <typename Function>
Plan with_tensor(const Tensor &self, const Tensor &other, Tensor &out) {
  check(self);
  check(other);
  check_broadcast(out, {&self, &other});
  return {[&] { map<std::int64_t>([](auto a, auto b) { return Function::of(a, b); }, out, self, other); }};
}

template <typename Function>
Plan with_scalar(const Tensor &self, const Scalar &other, Tensor &out) {
  check(self);
  check_broadcast(out, {&self});
  return {[&] { map<std::int64_t>([b = other.as<std::int64_t>()](auto a) { return Function::of(a, b); }, out, self); }};
}

Plan bitwise_not(const Tensor &self, Tensor &out) {
  check(self);
  check_broadcast(out, {&self});
  const bool truth = self.dtype == ACL_BOOL;
  return {[&, truth] { map<std::int64_t>([truth](auto a) { return truth ? a == 0 : ~a; }, out, self); }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnBitwiseOrTensor, host::with_tensor<host::BitOr>)
ACLNN_OPERATOR(aclnnBitwiseOrScalar, host::with_scalar<host::BitOr>)
ACLNN_OPERATOR(aclnnBitwiseAndTensor, host::with_tensor<host::BitAnd>)
ACLNN_OPERATOR(aclnnBitwiseAndScalar, host::with_scalar<host::BitAnd>)
ACLNN_OPERATOR(aclnnBitwiseXorTensor, host::with_tensor<host::BitXor>)
ACLNN_OPERATOR(aclnnBitwiseXorScalar, host::with_scalar<host::BitXor>)
ACLNN_OPERATOR(aclnnBitwiseNot, host::bitwise_not)
