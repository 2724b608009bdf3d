#include "framework/executor.h"

#include <chrono>
#include <cstring>
#include <map>

#include "framework/trace.h"

namespace host {
namespace {

// Scratch memory holds anything before and after a kernel. Filling it shows an allocation that overlaps live data.
constexpr int kScratch = 0xA5;

void check_address(const Tensor &tensor, const std::string &where) {
  if (tensor.empty()) return;
  require(tensor.data != nullptr, kRuntimeError, where, " has a null address");
  auto [first, end] = tensor.reach();
  const char *start = static_cast<const char *>(tensor.data) + first;
  require(is_device_memory(start, static_cast<std::size_t>(end - first)), kRuntimeError, where, " ", tensor.describe(),
          " reaches beyond mapped device memory");
}

std::shared_ptr<Executor> living(const aclOpExecutor *handle, const char *caller) {
  require(handle != nullptr, kNullPointer, caller, ": the executor is null");
  auto executor = executors().find(handle);
  require(executor != nullptr, kExecutorError, caller,
          executors().known(handle)
            ? ": the executor is gone: it was destroyed, or used once without being made repeatable"
            : ": not an executor");
  return executor;
}

// Whether the object that the caller passed is still alive, and of which kind it is.
struct CallersObject {
  const void *handle;
  Kept &kept;

  void operator()(std::monostate) const {}
  void operator()(double) const {}
  void operator()(std::int64_t) const {}
  void operator()(const std::shared_ptr<std::string> &) const {}
  template <typename Object>
  void operator()(const std::shared_ptr<Object> &) const {
    if (objects<Object>().contains(handle)) ++kept.counts[static_cast<std::size_t>(Interface<Object>::kind)];
  }
};

// MindSpore's eager mode caches executors with their arguments and never gives them up.
Kept count_repeatable() {
  Kept kept;
  std::map<std::string, int> by_operator;
  executors().for_each([&](const Executor &executor) {
    if (!executor.repeatable()) return;
    ++by_operator[executor.name()];
    ++kept.counts[static_cast<std::size_t>(Kind::kExecutor)];
    for (const auto &argument : executor.arguments()) std::visit(CallersObject{argument->handle, kept}, argument->value);
  });
  for (const auto &[name, number] : by_operator) {
    kept.operators += text(kept.operators.empty() ? "" : ", ", name, " ", number);
  }
  return kept;
}

[[gnu::constructor]] void install_census() { set_census(count_repeatable); }

aclnnStatus guarded(const char *caller, const std::function<void()> &action) {
  try {
    action();
    return kOk;
  } catch (const Failure &failure) {
    report_error(failure.what());
    return failure.status();
  } catch (const std::exception &error) {
    report_error(text(caller, ": ", error.what()));
    return kRuntimeError;
  }
}

}  // namespace

bool Argument::tensor_like() const {
  return std::strcmp(c_type, "aclTensor*") == 0 || std::strcmp(c_type, "aclTensorList*") == 0;
}

Argument &Executor::add(Argument argument) {
  return *arguments_.emplace_back(std::make_unique<Argument>(std::move(argument)));
}

void Executor::make_repeatable() {
  require(settings().executor_reuse, kInvalid, name_, ": this executor cannot be made repeatable");
  repeatable_ = true;
}

// The vendor counts the tensors and tensor lists of the call, null or not.
Argument &Executor::tensor_argument(std::size_t index) {
  for (const auto &argument : arguments_) {
    if (argument->tensor_like() && index-- == 0) {
      require(!argument->null(), kInvalid, name_, ": an address for a tensor that is null");
      return *argument;
    }
  }
  throw Failure(kInvalid, text(name_, ": an address for a tensor that the call does not have"));
}

void Executor::set_address(std::size_t index, const void *handle, void *address) {
  Argument &argument = tensor_argument(index);
  auto *tensor = std::get_if<std::shared_ptr<Tensor>>(&argument.value);
  require(tensor != nullptr && argument.handle == handle, kInvalid, name_, ": tensor number ", index,
          " is not the one whose address is set");
  std::lock_guard<std::mutex> lock(running_);
  (*tensor)->data = address;
}

void Executor::set_list_address(std::size_t index, std::size_t entry, void *address) {
  auto *list = std::get_if<std::shared_ptr<TensorList>>(&tensor_argument(index).value);
  require(list != nullptr && entry < (*list)->tensors.size(), kInvalid, name_, ": argument ", index,
          " is not a list with an entry ", entry);
  std::lock_guard<std::mutex> lock(running_);
  (*list)->tensors[entry]->data = address;
}

void Executor::check_addresses() const {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::string where = text(name_, ": ", argument_name(name_, i));
    if (auto *tensor = std::get_if<std::shared_ptr<Tensor>>(&arguments_[i]->value)) check_address(**tensor, where);
    if (auto *list = std::get_if<std::shared_ptr<TensorList>>(&arguments_[i]->value)) {
      for (const auto &entry : (*list)->tensors) check_address(*entry, where);
    }
  }
}

void Executor::run(void *workspace, std::uint64_t workspace_size) {
  require(workspace_size >= plan_.workspace, kInvalid, name_, ": the workspace has ", workspace_size, " bytes, not ",
          plan_.workspace);
  if (plan_.workspace > 0) {
    require(workspace != nullptr, kNullPointer, name_, ": the workspace is null");
    require(is_device_memory(workspace, plan_.workspace), kRuntimeError, name_, ": the workspace is not device memory");
  }
  std::lock_guard<std::mutex> lock(running_);
  check_addresses();
  if (plan_.workspace > 0) std::memset(workspace, kScratch, plan_.workspace);
  plan_.compute();
}

Executors &executors() { return immortal<Executors>(Kind::kExecutor); }

aclnnStatus first_phase(const char *name, std::uint64_t *workspace, aclOpExecutor **handle,
                        const std::function<Plan(Executor &)> &prepare) {
  auto executor = std::make_shared<Executor>(name);
  const Stopwatch watch;
  aclnnStatus status = guarded(name, [&] {
    require(workspace != nullptr && handle != nullptr, kNullPointer, name, ": workspaceSize or executor is null");
    executor->ready(prepare(*executor));
    *workspace = executor->workspace();
    *handle = executors().insert(executor);
  });
  trace({1, status, status == kOk ? *handle : nullptr, nullptr, executor->workspace(), watch}, *executor);
  return status;
}

aclnnStatus second_phase(const char *name, void *workspace, std::uint64_t workspace_size, aclOpExecutor *handle,
                         aclrtStream stream) {
  const Stopwatch watch;
  std::shared_ptr<Executor> executor;
  aclnnStatus status = guarded(name, [&] {
    executor = living(handle, name);
    require(executor->name() == name, kExecutorError, name, ": the executor belongs to ", executor->name());
    if (!executor->repeatable()) executors().remove(handle);
    executor->run(workspace, workspace_size);
  });
  if (executor == nullptr) executor = std::make_shared<Executor>(name);
  trace({2, status, handle, stream, workspace_size, watch}, *executor);
  return status;
}

}  // namespace host

using namespace host;

extern "C" {

HOST_API aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *handle) {
  try {
    living(handle, "aclSetAclOpExecutorRepeatable")->make_repeatable();
    return kOk;
  } catch (const Failure &failure) {
    return failure.status();  // no error text: MindSpore asks in order to choose how to launch
  }
}

HOST_API aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *handle) {
  return guarded("aclDestroyAclOpExecutor", [&] {
    living(handle, "aclDestroyAclOpExecutor");
    executors().remove(handle);
  });
}

HOST_API aclnnStatus aclSetTensorAddr(aclOpExecutor *handle, std::size_t index, aclTensor *tensor, void *address) {
  return guarded("aclSetTensorAddr", [&] {
    living(handle, "aclSetTensorAddr")->set_address(index, tensor, address);
  });
}

HOST_API aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor *handle, std::size_t index, std::size_t entry,
                                             aclTensorList *, void *address) {
  return guarded("aclSetDynamicTensorAddr", [&] {
    living(handle, "aclSetDynamicTensorAddr")->set_list_address(index, entry, address);
  });
}

HOST_API aclnnStatus aclnnInit(const char *) { return kOk; }
HOST_API aclnnStatus aclnnFinalize() { return kOk; }

// Memory that the vendor's framework keeps per thread; MindSpore brackets its calls with these.
HOST_API int InitHugeMemThreadLocal(void *, bool) { return 0; }
HOST_API void UnInitHugeMemThreadLocal(void *, bool) {}
HOST_API void ReleaseHugeMem(void *, bool) {}

// A cache of executors inside the vendor's framework, which no operator here uses.
HOST_API bool CanUsePTACache(const char *) { return false; }
HOST_API void InitPTACacheThreadLocal() {}
HOST_API void UnInitPTACacheThreadLocal() {}
HOST_API void SetPTAHashKey(std::uint64_t) {}
HOST_API aclOpExecutor *PTAGetExecCache(std::uint64_t, std::uint64_t *) { return nullptr; }

}  // extern "C"
