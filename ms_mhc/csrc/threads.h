// SPDX-License-Identifier: Apache-2.0
// Threads, if the compiler has OpenMP; one otherwise.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#include <pthread.h>
#endif

#include <atomic>
#include <cstdint>
#include <exception>

#include "mhc.h"

namespace mhc {

#if defined(_OPENMP)
// A forked process inherits OpenMP's list of threads, but not the threads: it would wait for them for ever.
inline std::atomic<bool> threads_were_used{false}, threads_were_lost{false};
inline const int told_of_forks = pthread_atfork(nullptr, nullptr, [] { threads_were_lost = threads_were_used.load(); });

inline int max_threads() {
  if (threads_were_lost) return 1;
  threads_were_used = true;
  return omp_get_max_threads();
}
inline int this_thread() { return omp_get_thread_num(); }
#else
inline int max_threads() { return 1; }
inline int this_thread() { return 0; }
#endif

// No more threads than there are pieces of work.
inline int threads_for(int64_t pieces) {
  const int most = max_threads();
  return pieces < most ? static_cast<int>(pieces < 1 ? 1 : pieces) : most;
}

// The threads of one parallel region, and the loops that they share. An exception must not leave such a region, nor keep
// a thread from the barrier that the others wait at: the first one is kept, the rest of the work left out, and it is
// thrown again where the region was opened.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {}

  template <typename Work>
  void run(const Work &work) {
#pragma omp parallel num_threads(count_)
    work();
    if (error_) std::rethrow_exception(error_);
  }

  // Within run: work(i) for i < count, then a barrier. In equal parts, or as threads come to it.
  template <typename Work>
  void share(int64_t count, const Work &work) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) piece([&] { work(i); });
  }

  template <typename Work>
  void share_as_they_come(int64_t count, const Work &work) {
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) piece([&] { work(i); });
  }

  // Within run: one thread does this, and nobody waits for it.
  template <typename Work>
  void one_of_them(const Work &work) {
#pragma omp single nowait
    piece(work);
  }

 private:
  template <typename Work>
  void piece(const Work &work) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      work();
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  int count_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace mhc
