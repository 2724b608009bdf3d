// The count of what the vendor's interface created and did not destroy, and the report at exit.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/host.h"

namespace host {
namespace {

constexpr int kLeakStatus = 86;  // the exit status of a program that would have succeeded but left something

constexpr std::array<const char *, kKinds> kNames = {
  "tensors",     "tensor lists", "scalars",   "scalar lists", "int arrays",
  "bool arrays", "float arrays", "executors", "events",       "operator objects",
};

std::array<std::atomic<std::int64_t>, kKinds> counters;
pid_t reporting_process = 0;
Kept (*census)() = nullptr;

// Runs after every library's own clean-up: the runtime is preloaded, so its handler was registered first.
void report_at_exit(int status, void *) {
  if (getpid() != reporting_process) return;  // a compiler or another child, which inherits the environment
  const Kept kept = census != nullptr ? census() : Kept{};
  std::int64_t left = 0;
  std::string message;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const std::int64_t lost = counters[kind] - kept.counts[kind];
    left += lost;
    if (lost != 0) message += " " + std::to_string(lost) + " " + kNames[kind];
  }
  std::fprintf(stderr, "[host CANN] at exit: %s%s\n", left == 0 ? "nothing left" : "left alive:", message.c_str());
  if (!kept.operators.empty()) {
    std::fprintf(stderr, "[host CANN] at exit: repeatable executors in caches: %s\n", kept.operators.c_str());
  }
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

void set_census(Kept (*function)()) { census = function; }

}  // namespace host
