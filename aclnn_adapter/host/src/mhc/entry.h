// How the generated entry points hand a call over.
//
// The two exported functions of every operator are generated from the contract (vendor.py). They hand over to a function
// that is called as the operator without aclnn and V2, in snake_case, and sees the arguments by their names:
//
//     Plan kernels::mhc_pre_backward(Call call) { ... call.tensor("gradHIn") ... call.attr<float>("hcEps") ... }
#pragma once

#include "framework/operator.h"
#include "mhc/call.h"

namespace host {

template <typename C>
void take(Executor &executor, C value) {
  if constexpr (std::is_pointer_v<C>) {
    capture<Tensor>(executor, value, false);
  } else {
    Passing<C>::take(executor, value);
  }
}

template <typename... C>
aclnnStatus hand_over(const char *name, Plan (*kernel)(Call), std::uint64_t *workspace, aclOpExecutor **handle,
                      C... arguments) {
  return first_phase(name, workspace, handle, [&](Executor &executor) {
    (take(executor, arguments), ...);
    return kernel(Call(*contract::find(name), executor));
  });
}

}  // namespace host
