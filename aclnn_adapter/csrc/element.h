// SPDX-License-Identifier: Apache-2.0
// The 16-bit element types, and their conversions to and from fp32, one number at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace mhc {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

namespace element_detail {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace element_detail

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) { return element_detail::float_of(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Half value) {
  using namespace element_detail;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));  // inf, NaN
  // Exact for subnormal numbers too: the product with 2^112 moves the exponent, whatever the mantissa.
  const float scaled = float_of(magnitude << 13) * 0x1p112f;
  return float_of(sign | bits_of(scaled));
}

template <typename Scalar>
Scalar from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = element_detail::bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Half from_float<Half>(float value) {
  using namespace element_detail;
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace mhc
