// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace mhc {

namespace baseline {
extern const Kernels kernels;
}

#if defined(MHC_X86_VARIANTS)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

bool allowed(const char *name, const char *wanted) { return wanted == nullptr || std::strcmp(name, wanted) == 0; }

const Kernels &choose() {
  const char *wanted = std::getenv("MS_MHC_CPU_ISA");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
#if defined(MHC_X86_VARIANTS)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && allowed("avx512", wanted)) return avx512::kernels;
  if (has_avx2 && !(wanted != nullptr && std::strcmp(wanted, "baseline") == 0)) return avx2::kernels;
#else
  (void)allowed;
  (void)wanted;
#endif
  return baseline::kernels;
}

}  // namespace

const Kernels &kernels() {
  static const Kernels &chosen = choose();
  return chosen;
}

}  // namespace mhc
