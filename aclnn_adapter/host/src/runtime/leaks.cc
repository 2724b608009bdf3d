// The count of what the vendor's interface created and did not destroy, and the report at exit.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "runtime/host.h"

namespace host {
namespace {

constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::kCount);
constexpr int kLeakStatus = 86;  // the exit status of a program that would have succeeded but left something

constexpr std::array<const char *, kKinds> kNames = {
  "tensors",    "tensor lists", "scalars",               "int arrays", "bool arrays",
  "float arrays", "executors",  "repeatable executors", "events",     "operator objects",
};

std::array<std::atomic<std::int64_t>, kKinds> counters;
pid_t reporting_process = 0;

// Runs after every library's own clean-up: the runtime is preloaded, so its handler was registered first.
void report_at_exit(int status, void *) {
  if (getpid() != reporting_process) return;  // a compiler or another child, which inherits the environment
  std::int64_t left = 0;
  for (std::size_t kind = 0; kind < kKinds; ++kind) left += counters[kind];
  std::fprintf(stderr, "[host CANN] at exit: %s", left == 0 ? "nothing left" : "left alive:");
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (counters[kind] != 0) std::fprintf(stderr, " %lld %s", static_cast<long long>(counters[kind]), kNames[kind]);
  }
  std::fprintf(stderr, "\n");
  if (left != 0 && status == 0) {
    std::fflush(nullptr);
    _exit(kLeakStatus);
  }
}

[[gnu::constructor]] void install() {
  if (!settings().check_leaks) return;
  const char *process = std::getenv("CANN_HOST_PROCESS");  // the launcher's, which turns into the program
  reporting_process = process != nullptr ? static_cast<pid_t>(std::atol(process)) : getpid();
  on_exit(report_at_exit, nullptr);
}

}  // namespace

void count(Kind kind, int change) { counters[static_cast<std::size_t>(kind)] += change; }

std::int64_t living(Kind kind) { return counters[static_cast<std::size_t>(kind)]; }

}  // namespace host
