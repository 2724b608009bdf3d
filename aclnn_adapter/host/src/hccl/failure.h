// Failures of collective communication, which carry the code that HCCL would return.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "hccl/abi.h"

namespace host::hccl {

class Failure : public std::runtime_error {
 public:
  Failure(HcclResult result, const std::string &message) : std::runtime_error(message), result_(result) {}
  HcclResult result() const { return result_; }

 private:
  HcclResult result_;
};

// "a", 1, 'c' -> "a1c"
template <typename... Parts>
std::string text(const Parts &...parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
void require(bool condition, HcclResult result, const Parts &...message) {
  if (!condition) throw Failure(result, text(message...));
}

}  // namespace host::hccl
