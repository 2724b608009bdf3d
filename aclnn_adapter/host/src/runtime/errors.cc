#include <cstdio>
#include <mutex>
#include <string>

#include "runtime/acl_abi.h"
#include "runtime/host.h"

namespace {

struct Recent {
  std::mutex mutex;
  std::string message;
};

// Most recent of the process, not of the thread: MindSpore launches in one thread and reports in another.
Recent &recent() {
  static auto *instance = new Recent;
  return *instance;
}

}  // namespace

namespace host {

void report_error(const std::string &message) {
  std::fprintf(stderr, "[host CANN] %s\n", message.c_str());
  std::lock_guard<std::mutex> lock(recent().mutex);
  recent().message = message;
}

}  // namespace host

extern "C" HOST_API const char *aclGetRecentErrMsg() {
  thread_local std::string handed_out;
  std::lock_guard<std::mutex> lock(recent().mutex);
  handed_out.swap(recent().message);
  recent().message.clear();
  return handed_out.c_str();
}
