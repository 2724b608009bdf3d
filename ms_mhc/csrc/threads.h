// SPDX-License-Identifier: Apache-2.0
// Threads, if the compiler has OpenMP; one otherwise.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <cstdint>

#include "mhc.h"

namespace mhc {

#if defined(_OPENMP)
inline int max_threads() { return omp_get_max_threads(); }
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

}  // namespace mhc
