// One line of JSON per aclnn call.
#pragma once

#include <chrono>
#include <string>

#include "framework/executor.h"

namespace host {

class Stopwatch {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Call {
  int phase;
  aclnnStatus status;
  const aclOpExecutor *executor;
  aclrtStream stream;
  std::uint64_t workspace;
  const Stopwatch &watch;
};

void trace(const Call &call, const Executor &executor);

// For the libraries beside this one: whether there is a trace, and one finished line for it.
HOST_API bool traced();
HOST_API void write_trace(const std::string &line);

// The name in the contract, or arg0, arg1, ... for an operator that is not in it.
std::string argument_name(const std::string &op, std::size_t index);

}  // namespace host
