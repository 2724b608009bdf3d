// What the runtime (libascendcl) offers to the other host libraries, beside the vendor's own interface.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#define HOST_API __attribute__((visibility("default")))

namespace host {

// The options of the command line; they travel in environment variables.
struct Settings {
  std::string soc_name;       // CANN_HOST_SOC
  std::string trace_file;     // CANN_HOST_TRACE, empty for none
  bool executor_reuse;        // CANN_HOST_EXECUTOR_REUSE=off: executors refuse to be repeatable
  bool check_leaks;           // CANN_HOST_CHECK_LEAKS=1: something left at exit makes the exit status non-zero
  std::size_t device_memory;  // CANN_HOST_MEMORY, in bytes
};

HOST_API const Settings &settings();

// The soc version that CANN derives from the soc's name, such as ascend950 from Ascend950PR_9579.
HOST_API std::string soc_version();

// Keeps the text for aclGetRecentErrMsg and prints it, as CANN's own log would.
HOST_API void report_error(const std::string &message);

// Whether all of [address, address + bytes) is device memory that is mapped now.
HOST_API bool is_device_memory(const void *address, std::size_t bytes);

HOST_API std::size_t live_device_bytes();

// Objects that the vendor's interface creates and destroys. What is left at exit is a leak.
enum class Kind {
  kTensor,
  kTensorList,
  kScalar,
  kScalarList,
  kIntArray,
  kBoolArray,
  kFloatArray,
  kExecutor,
  kEvent,
  kOperatorObject,  // descriptions, buffers and attributes of the older operator interface
  kCount
};

inline constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::kCount);

HOST_API void count(Kind kind, int change);

// What is alive on purpose: executors that can be used again, and the objects that belong to them.
struct Kept {
  std::array<std::int64_t, kKinds> counts{};
  std::string operators;  // "aclnnAdd 2, aclnnCast 1"
};

// The framework tells the runtime how to find it.
HOST_API void set_census(Kept (*census)());

}  // namespace host
