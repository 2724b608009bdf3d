// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <stdexcept>
#include <string>

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

struct InstructionSet {
  const char *name;
  const Kernels *kernels;
  bool here;
};

struct Choice {
  Choice() {
    const InstructionSet all[] = {
        {"baseline", &baseline::kernels, true},
#if defined(MHC_HAS_AVX2)
        {"avx2", &avx2::kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
#if defined(MHC_HAS_AVX512)
        {"avx512", &avx512::kernels,
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")},
#endif
    };
    const char *variable = std::getenv("MS_MHC_CPU_ISA");
    const std::string wanted = variable ? variable : "";
    for (const InstructionSet &set : all) {
      if (!set.here) continue;
      names += (names.empty() ? "" : ", ") + std::string(set.name);
      if (wanted.empty() || wanted == set.name) {
        name = set.name;
        kernels = set.kernels;
      }
    }
  }

  std::string names;
  const char *name = "";
  const Kernels *kernels = nullptr;
};

const Choice &choice() {
  static const Choice made;
  return made;
}

}  // namespace

const Kernels &kernels() {
  const Choice &made = choice();
  if (!made.kernels) throw std::invalid_argument("MS_MHC_CPU_ISA must be one of " + made.names);
  return *made.kernels;
}

const char *instruction_set() { return choice().name; }

const char *instruction_sets() { return choice().names.c_str(); }

}  // namespace mhc
