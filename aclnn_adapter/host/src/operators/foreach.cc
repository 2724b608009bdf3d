// Operators over lists of tensors: each entry on its own, with the functions of the operators over single tensors.
#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/functions.h"
#include "operators/moving.h"
#include "operators/reduce.h"

namespace host {
namespace {

// The number that goes with one entry: one for all, or one per entry, on the host or on the device.
double number(const Scalar &scalar, std::size_t) { return scalar.as<double>(); }
double number(const ScalarList &scalars, std::size_t entry) { return scalars.scalars[entry]->as<double>(); }
double number(const Tensor &numbers, std::size_t entry) {
  double value = 0;
  load(numbers, static_cast<std::int64_t>(entry) * numbers.strides[0], 1, 1, &value);
  return value;
}

void check_numbers(const Scalar &, std::size_t) {}
void check_numbers(const ScalarList &scalars, std::size_t entries) {
  require(scalars.scalars.size() == entries, kInvalid, scalars.scalars.size(), " scalars for ", entries, " tensors");
}
void check_numbers(const Tensor &numbers, std::size_t entries) {
  require(numbers.shape == Shape{static_cast<std::int64_t>(entries)}, kInvalid, "numbers for ", entries, " tensors in ",
          numbers.describe());
}

void check_lists(const TensorList &out, std::initializer_list<const TensorList *> inputs) {
  for (const TensorList *input : inputs) {
    require(input->tensors.size() == out.tensors.size(), kInvalid, "a list of ", input->tensors.size(),
            " tensors beside one of ", out.tensors.size());
    for (std::size_t i = 0; i < out.tensors.size(); ++i) check_broadcast(*out.tensors[i], {input->tensors[i].get()});
  }
}

// out[i] = Function(inputs[i]...)
template <typename Function, typename... Inputs>
Plan each(const TensorList &out, const Inputs &...inputs) {
  check_lists(out, {&inputs...});
  return {[&] {
    for (std::size_t i = 0; i < out.tensors.size(); ++i) {
      const Compute type = working_type<Function>(compute_type(out.tensors[i]->dtype));
      map_in(type, [](auto... values) { return Function::of(values...); }, *out.tensors[i], *inputs.tensors[i]...);
    }
  }};
}

// out[i] = Function(inputs[i]..., the number of entry i)
template <typename Function, typename Numbers, typename... Inputs>
Plan each_with(const Numbers &numbers, const TensorList &out, const Inputs &...inputs) {
  check_lists(out, {&inputs...});
  check_numbers(numbers, out.tensors.size());
  return {[&] {
    for (std::size_t i = 0; i < out.tensors.size(); ++i) {
      with_compute(working_type<Function>(compute_type(out.tensors[i]->dtype)), [&](auto zero) {
        using C = decltype(zero);
        const auto last = static_cast<C>(number(numbers, i));
        map<C>([last](auto... values) { return Function::of(values..., last); }, *out.tensors[i],
               *inputs.tensors[i]...);
      });
    }
  }};
}

template <typename Function>
Plan unary(const TensorList &x, const TensorList &out) {
  return each<Function>(out, x);
}

template <typename Function>
Plan binary(const TensorList &x, const TensorList &other, const TensorList &out) {
  return each<Function>(out, x, other);
}

template <typename Function, typename Numbers>
Plan with_number(const TensorList &x, const Numbers &numbers, const TensorList &out) {
  return each_with<Function>(numbers, out, x);
}

template <typename Function>
Plan number_first(const Scalar &scalar, const TensorList &x, const TensorList &out) {
  return each_with<Swapped<Function>>(scalar, out, x);
}

template <typename Function, typename Numbers>
Plan two_with_number(const TensorList &x, const TensorList &other, const Numbers &numbers, const TensorList &out) {
  return each_with<Function>(numbers, out, x, other);
}

template <typename Function, typename Numbers>
Plan three_with_number(const TensorList &x, const TensorList &first, const TensorList &second, const Numbers &numbers,
                       const TensorList &out) {
  return each_with<Function>(numbers, out, x, first, second);
}

Plan copy_all(const TensorList &x, const TensorList &out) {
  check_lists(out, {&x});
  return {[&] {
    for (std::size_t i = 0; i < out.tensors.size(); ++i) convert(*x.tensors[i], *out.tensors[i]);
  }};
}

Plan zero_all(const TensorList &x) {
  return {[&] {
    for (const auto &tensor : x.tensors) map<std::int64_t>([] { return 0; }, *tensor);
  }};
}

Plan norm_each(const TensorList &x, const Scalar &power, const TensorList &out) {
  require(x.tensors.size() == out.tensors.size(), kInvalid, "a list of ", x.tensors.size(), " tensors beside one of ",
          out.tensors.size());
  for (const auto &tensor : out.tensors) {
    require(tensor->size() == 1, kInvalid, "a norm is one number, out is ", tensor->describe());
  }
  return {[&] {
    for (std::size_t i = 0; i < x.tensors.size(); ++i) norm_of_all(*x.tensors[i], power.as<double>(), *out.tensors[i]);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnForeachAbs, host::unary<host::Abs>)
ACLNN_OPERATOR(aclnnForeachCos, host::unary<host::Cos>)
ACLNN_OPERATOR(aclnnForeachErf, host::unary<host::Erf>)
ACLNN_OPERATOR(aclnnForeachExp, host::unary<host::Exp>)
ACLNN_OPERATOR(aclnnForeachLog, host::unary<host::Log>)
ACLNN_OPERATOR(aclnnForeachNeg, host::unary<host::Neg>)
ACLNN_OPERATOR(aclnnForeachReciprocal, host::unary<host::Reciprocal>)
ACLNN_OPERATOR(aclnnForeachSigmoid, host::unary<host::Sigmoid>)
ACLNN_OPERATOR(aclnnForeachSign, host::unary<host::Sign>)
ACLNN_OPERATOR(aclnnForeachSin, host::unary<host::Sin>)
ACLNN_OPERATOR(aclnnForeachSqrt, host::unary<host::Sqrt>)
ACLNN_OPERATOR(aclnnForeachTanh, host::unary<host::Tanh>)
ACLNN_OPERATOR(aclnnForeachMulList, host::binary<host::Mul>)
ACLNN_OPERATOR(aclnnForeachDivList, host::binary<host::Div>)
ACLNN_OPERATOR(aclnnForeachMaximumList, host::binary<host::Maximum>)
ACLNN_OPERATOR(aclnnForeachMinimumList, host::binary<host::Minimum>)
ACLNN_OPERATOR(aclnnForeachPowList, host::binary<host::Pow>)
ACLNN_OPERATOR(aclnnForeachPowScalarAndTensor, host::number_first<host::Pow>)
ACLNN_OPERATOR(aclnnForeachAddScalarV2, host::with_number<host::Add, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachAddScalarList, host::with_number<host::Add, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachSubScalarV2, host::with_number<host::Sub, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachSubScalarList, host::with_number<host::Sub, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachMulScalarV2, host::with_number<host::Mul, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachMulScalarList, host::with_number<host::Mul, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachDivScalarV2, host::with_number<host::Div, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachDivScalarList, host::with_number<host::Div, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachMaximumScalarV2, host::with_number<host::Maximum, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachMaximumScalarList, host::with_number<host::Maximum, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachMinimumScalarV2, host::with_number<host::Minimum, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachMinimumScalarList, host::with_number<host::Minimum, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachPowScalarV2, host::with_number<host::Pow, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachPowScalarList, host::with_number<host::Pow, host::ScalarList>)
ACLNN_OPERATOR(aclnnForeachAddListV2, host::two_with_number<host::Scaled<host::Add>, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachSubListV2, host::two_with_number<host::Scaled<host::Sub>, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachLerpScalar, host::two_with_number<host::Lerp, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachAddcmulScalarV2, host::three_with_number<host::Compound<host::Mul>, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachAddcmulScalarList, host::three_with_number<host::Compound<host::Mul>, host::Tensor>)
ACLNN_OPERATOR(aclnnForeachAddcdivScalarV2, host::three_with_number<host::Compound<host::Div>, host::Scalar>)
ACLNN_OPERATOR(aclnnForeachAddcdivScalarList, host::three_with_number<host::Compound<host::Div>, host::Tensor>)
ACLNN_OPERATOR(aclnnForeachCopy, host::copy_all)
ACLNN_OPERATOR(aclnnForeachZeroInplace, host::zero_all)
ACLNN_OPERATOR(aclnnForeachNorm, host::norm_each)
