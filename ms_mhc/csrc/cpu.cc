// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace mhc {

// Each is kernels.cc compiled once; the build says which there are besides the baseline.
namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

namespace {

const Kernels &choose() {
  const char *wanted = std::getenv("MS_MHC_CPU_ISA");
  const auto allowed = [wanted](const char *name) {
    return wanted == nullptr || *wanted == '\0' || std::strcmp(name, wanted) == 0;
  };
  (void)allowed;
#if defined(MHC_HAS_AVX512)
  if (allowed("avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    return avx512::kernels;
  }
#endif
#if defined(MHC_HAS_AVX2)
  if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kernels;
#endif
  return baseline::kernels;
}

}  // namespace

const Kernels &kernels() {
  static const Kernels &chosen = choose();
  return chosen;
}

}  // namespace mhc
