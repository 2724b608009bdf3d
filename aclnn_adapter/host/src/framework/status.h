// The status codes of aclnn calls, and failures that carry one.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "runtime/acl_abi.h"

namespace host {

inline constexpr aclnnStatus kOk = 0;
inline constexpr aclnnStatus kNullPointer = 161001;          // ACLNN_ERR_PARAM_NULLPTR
inline constexpr aclnnStatus kInvalid = 161002;              // ACLNN_ERR_PARAM_INVALID
inline constexpr aclnnStatus kRuntimeError = 361001;         // ACLNN_ERR_RUNTIME_ERROR
inline constexpr aclnnStatus kTilingError = 561002;          // ACLNN_ERR_INNER_TILING_ERROR
inline constexpr aclnnStatus kNoKernel = 561003;             // ACLNN_ERR_INNER_FIND_KERNEL_ERROR
inline constexpr aclnnStatus kExecutorError = 561101;        // ACLNN_ERR_INNER_CREATE_EXECUTOR
inline constexpr aclnnStatus kInnerNullPointer = 561103;     // ACLNN_ERR_INNER_NULLPTR

class Failure : public std::runtime_error {
 public:
  Failure(aclnnStatus status, const std::string &message) : std::runtime_error(message), status_(status) {}
  aclnnStatus status() const { return status_; }

 private:
  aclnnStatus status_;
};

// "a", 1, 'c' -> "a1c"
template <typename... Parts>
std::string text(const Parts &...parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
void require(bool condition, aclnnStatus status, const Parts &...message) {
  if (!condition) throw Failure(status, text(message...));
}

}  // namespace host
