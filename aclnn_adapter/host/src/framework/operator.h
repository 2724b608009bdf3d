// How an aclnn operator is defined.
//
// A plan is a function that checks its arguments, throwing Failure, and returns what the second phase does:
//
//     Plan add(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
//       require(...);
//       return {[&self, &other, &alpha, &out] { ... }};
//     }
//     ACLNN_OPERATOR(aclnnAdd, add)
//
// The C prototype is deduced from the plan's: a reference is a pointer that must not be null, a pointer may be null.
// The objects belong to the executor and live as long as it does, so the second phase may refer to them.
#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "framework/executor.h"

namespace host {

template <typename T>
inline constexpr const char *kCType = nullptr;
template <> inline constexpr const char *kCType<Tensor> = "aclTensor*";
template <> inline constexpr const char *kCType<TensorList> = "aclTensorList*";
template <> inline constexpr const char *kCType<Scalar> = "aclScalar*";
template <> inline constexpr const char *kCType<ScalarList> = "aclScalarList*";
template <> inline constexpr const char *kCType<IntArray> = "aclIntArray*";
template <> inline constexpr const char *kCType<BoolArray> = "aclBoolArray*";
template <> inline constexpr const char *kCType<FloatArray> = "aclFloatArray*";
template <> inline constexpr const char *kCType<const char *> = "char*";
template <> inline constexpr const char *kCType<float> = "float";
template <> inline constexpr const char *kCType<double> = "double";
template <> inline constexpr const char *kCType<bool> = "bool";
template <> inline constexpr const char *kCType<std::int8_t> = "int8_t";
template <> inline constexpr const char *kCType<std::int32_t> = "int32_t";
template <> inline constexpr const char *kCType<std::int64_t> = "int64_t";
template <> inline constexpr const char *kCType<std::uint64_t> = "uint64_t";
template <> inline constexpr const char *kCType<aclDataType> = "aclDataType";

template <typename Object>
std::shared_ptr<Object> copy(const Object &object) {
  return std::make_shared<Object>(object);
}

inline std::shared_ptr<TensorList> copy(const TensorList &list) {
  auto result = std::make_shared<TensorList>();
  for (const auto &tensor : list.tensors) result->tensors.push_back(copy(*tensor));
  return result;
}

// The executor's copy of an object, or null for a null handle.
template <typename Object>
Object *capture(Executor &executor, const typename Interface<Object>::Handle *handle, bool output) {
  Argument &argument = executor.add({kCType<Object>, output, handle, {}});
  if (handle == nullptr) return nullptr;
  auto object = objects<Object>().find(handle);
  require(object != nullptr, kInvalid, executor.name(), ": argument ", executor.arguments().size() - 1,
          " is not a living ", kCType<Object>);
  return argument.value.template emplace<std::shared_ptr<Object>>(copy(*object)).get();
}

// How a parameter of a plan is spelled in C, and how it comes from there.
template <typename Parameter>
struct Passing {  // numbers
  using C = Parameter;
  static Parameter take(Executor &executor, C value) {
    using Stored = std::conditional_t<std::is_floating_point_v<Parameter>, double, std::int64_t>;
    executor.add({kCType<Parameter>, false, nullptr, static_cast<Stored>(value)});
    return value;
  }
};

template <>
struct Passing<const char *> {
  using C = const char *;
  static const char *take(Executor &executor, C value) {
    Argument &argument = executor.add({kCType<const char *>, false, nullptr, {}});
    if (value == nullptr) return nullptr;
    return argument.value.emplace<std::shared_ptr<std::string>>(std::make_shared<std::string>(value))->c_str();
  }
};

template <typename Object>
struct Passing<Object *> {
  using Plain = std::remove_const_t<Object>;
  using Handle = typename Interface<Plain>::Handle;
  using C = std::conditional_t<std::is_const_v<Object>, const Handle, Handle> *;
  static Object *take(Executor &executor, C handle) {
    return capture<Plain>(executor, handle, !std::is_const_v<Object>);
  }
};

template <typename Object>
struct Passing<Object &> {
  using C = typename Passing<Object *>::C;
  static Object &take(Executor &executor, C handle) {
    Object *object = Passing<Object *>::take(executor, handle);
    require(object != nullptr, kNullPointer, executor.name(), ": argument ", executor.arguments().size() - 1,
            " is null");
    return *object;
  }
};

using RunFunction = aclnnStatus(void *, std::uint64_t, aclOpExecutor *, aclrtStream);

template <typename PlanFunction>
struct Phases;

template <typename... Parameters>
struct Phases<Plan(Parameters...)> {
  using SizeFunction = aclnnStatus(typename Passing<Parameters>::C..., std::uint64_t *, aclOpExecutor **);

  template <Plan (*plan)(Parameters...), const char *name>
  static aclnnStatus size(typename Passing<Parameters>::C... arguments, std::uint64_t *workspace,
                          aclOpExecutor **handle) {
    return first_phase(name, workspace, handle, [&](Executor &executor) {
      // Braces: the arguments are taken from left to right.
      std::tuple<Parameters...> taken{Passing<Parameters>::take(executor, arguments)...};
      return std::apply(plan, taken);
    });
  }

  template <const char *name>
  static aclnnStatus run(void *workspace, std::uint64_t bytes, aclOpExecutor *handle, aclrtStream stream) {
    return second_phase(name, workspace, bytes, handle, stream);
  }
};

}  // namespace host

// Exports NAME and NAMEGetWorkspaceSize. An exported name cannot be a template's, so each is bound to its instance
// when the library is loaded (ifunc).
#define ACLNN_OPERATOR(NAME, ...)                                                                                   \
  namespace host::names {                                                                                           \
  inline constexpr char NAME[] = #NAME;                                                                             \
  }                                                                                                                 \
  extern "C" {                                                                                                      \
  static auto NAME##_bind_size()->host::Phases<decltype(__VA_ARGS__)>::SizeFunction * {                             \
    return &host::Phases<decltype(__VA_ARGS__)>::template size<__VA_ARGS__, host::names::NAME>;                     \
  }                                                                                                                 \
  static auto NAME##_bind_run()->host::RunFunction * {                                                              \
    return &host::Phases<decltype(__VA_ARGS__)>::template run<host::names::NAME>;                                   \
  }                                                                                                                 \
  HOST_API host::Phases<decltype(__VA_ARGS__)>::SizeFunction NAME##GetWorkspaceSize                                 \
    __attribute__((ifunc(#NAME "_bind_size")));                                                                     \
  HOST_API host::RunFunction NAME __attribute__((ifunc(#NAME "_bind_run")));                                        \
  }
