// SPDX-License-Identifier: Apache-2.0
// The element types of x and of what has its type. Conversions are in vector.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mhc.h"

namespace mhc {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

constexpr int64_t bytes_of(Element element) { return element == Element::kFloat32 ? 4 : 2; }

}  // namespace mhc
