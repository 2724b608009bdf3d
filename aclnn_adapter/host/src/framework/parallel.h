// Loops over several threads. OpenMP ends the process when an exception leaves one of its regions; these loops carry the
// first one out to the caller, whose status it becomes. No other file opens a region.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace host {

// Calls work(i) for i in [0, count), on several threads if it is worth it. After a failure what has not begun is left.
template <typename Work>
void parallel_for(std::int64_t count, bool worth_threads, const Work &work) {
  std::exception_ptr failure;
  std::atomic_flag taken = ATOMIC_FLAG_INIT;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(static) if (worth_threads)
  for (std::int64_t i = 0; i < count; ++i) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      work(i);
    } catch (...) {
      if (!taken.test_and_set()) failure = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace host
