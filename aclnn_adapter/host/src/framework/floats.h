// The 16-bit floating-point types, converted one number at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace host {

struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

template <typename To, typename From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float to_float(BFloat16 value) { return bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

// Subnormal numbers go by way of integers: libraries that MindSpore loads make the processor take subnormal floats,
// which a shifted pattern would be, for zero.
inline float to_float(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  const auto subnormal = bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t infinite = (magnitude << 13) | 0x7F800000U;
  return bit_cast<float>(sign | (magnitude < 0x400U ? subnormal : magnitude < 0x7C00U ? normal : infinite));
}

// Rounds to nearest, ties to even.
inline BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

inline Half to_half(float value) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value), sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (value != value) {
    half = 0x7E00U;
  } else if (magnitude >= 0x477FF000U) {  // 65520 and more
    half = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 rounds to a multiple of 2^-24
    half = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    half = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace host
