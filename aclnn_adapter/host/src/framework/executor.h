// An executor: an operator with its arguments checked and copied, ready to run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "framework/objects.h"
#include "framework/status.h"
#include "runtime/acl_abi.h"
#include "runtime/host.h"

namespace host {

// What the first phase leaves to the second.
struct Plan {
  std::function<void()> compute;
  std::uint64_t workspace = 0;
};

// One argument of an aclnn call. Objects are the executor's own copies: the caller may destroy its own at once.
struct Argument {
  using Value = std::variant<std::monostate, std::shared_ptr<Tensor>, std::shared_ptr<TensorList>,
                             std::shared_ptr<Scalar>, std::shared_ptr<ScalarList>, std::shared_ptr<IntArray>,
                             std::shared_ptr<BoolArray>, std::shared_ptr<FloatArray>, std::shared_ptr<std::string>,
                             double, std::int64_t>;

  const char *c_type;
  bool output;  // a guess by type, for operators that are not in the contract
  const void *handle = nullptr;
  Value value;

  bool null() const { return std::holds_alternative<std::monostate>(value); }
  bool tensor_like() const;
};

class HOST_API Executor {
 public:
  explicit Executor(std::string name) : name_(std::move(name)) {}
  Executor(const Executor &) = delete;
  Executor &operator=(const Executor &) = delete;

  Argument &add(Argument argument);
  void ready(Plan plan) { plan_ = std::move(plan); }

  const std::string &name() const { return name_; }
  const std::vector<std::unique_ptr<Argument>> &arguments() const { return arguments_; }
  std::uint64_t workspace() const { return plan_.workspace; }
  bool repeatable() const { return repeatable_; }

  void make_repeatable();
  void set_address(std::size_t index, const void *handle, void *address);
  void set_list_address(std::size_t index, std::size_t entry, void *address);
  void run(void *workspace, std::uint64_t workspace_size);

 private:
  Argument &tensor_argument(std::size_t index);
  void check_addresses() const;

  const std::string name_;
  std::vector<std::unique_ptr<Argument>> arguments_;
  Plan plan_;
  bool repeatable_ = false;
  std::mutex running_;
};

using Executors = Handles<Executor, aclOpExecutor>;
HOST_API Executors &executors();

// Both phases of every operator end here. They return a status and never throw.
HOST_API aclnnStatus first_phase(const char *name, std::uint64_t *workspace, aclOpExecutor **handle,
                                 const std::function<Plan(Executor &)> &prepare);
HOST_API aclnnStatus second_phase(const char *name, void *workspace, std::uint64_t workspace_size,
                                  aclOpExecutor *handle, aclrtStream stream);

}  // namespace host
