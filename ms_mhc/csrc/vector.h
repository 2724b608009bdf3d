// SPDX-License-Identifier: Apache-2.0
// Vectors of fp32 and fp64 with the widest registers that this translation unit may use. Written with the vector
// extensions of GCC and Clang, so that one text serves every instruction set; intrinsics only where those have no word.
//
// Everything lies in the namespace MHC_ISA, which the build names after the instruction set: the same functions are
// compiled several times, and the linker must never merge two of them. For the same reason the kernels use no inline
// function of the standard library.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "element.h"

namespace mhc {
namespace MHC_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
#endif
constexpr int kDoubleLanes = kLanes / 2;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Shorts __attribute__((vector_size(kLanes * 2)));
typedef double Doubles __attribute__((vector_size(kLanes * 4)));
typedef int64_t Longs __attribute__((vector_size(kLanes * 4)));

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

inline Vec splat(float value) { return value - Vec{}; }
inline Doubles splat_double(double value) { return value - Doubles{}; }

// Loading, as fp32.

inline Vec load(const float *p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Shorts load_bits(const void *p) {
  Shorts v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Between 16 and 32 bits. GCC 12 makes several instructions of __builtin_convertvector where one would do, and its forms
// without a mask make it warn about its own header.

inline Words widen(Shorts v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, Words);
#endif
}

// of words below 2^16
inline Shorts narrow(Words v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Shorts>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(v)));
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v));
  return reinterpret_cast<Shorts>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  return __builtin_convertvector(v, Shorts);
#endif
}

inline Vec load(const BFloat16 *p) { return reinterpret_cast<Vec>(widen(load_bits(p)) << 16); }

inline Vec load(const Half *p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
#elif defined(__F16C__)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#else
  const Words bits = widen(load_bits(p));
  const Words sign = (bits & 0x8000u) << 16;
  const Words magnitude = bits & 0x7fffu;
  // No subnormal float on the way: the caller's thread may have told the processor to take those for zero.
  const Words normal = (magnitude << 13) + 0x38000000u;
  const Vec small = __builtin_convertvector(magnitude, Vec) * 0x1p-24f;
  const Words special = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
  const Words finite = magnitude < 0x400u ? reinterpret_cast<Words>(small) : normal;
  return reinterpret_cast<Vec>(sign | (magnitude >= 0x7c00u ? special : finite));
#endif
}

// Storing, rounded to nearest even; NaN stays NaN.

inline void store(float *p, Vec v) { std::memcpy(p, &v, sizeof v); }

inline Shorts round_to_bits(Vec v, BFloat16) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  return narrow((v != v) ? quiet : rounded);
}

inline Shorts round_to_bits(Vec v, Half) {
#if defined(__AVX512F__)
  return reinterpret_cast<Shorts>(_mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return reinterpret_cast<Shorts>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  const Words bits = reinterpret_cast<Words>(v);
  const Words sign = (bits >> 16) & 0x8000u;
  const Words magnitude = bits & 0x7fffffffu;
  // Below 2^-14, adding 1/2 leaves the multiple of 2^-24, rounded, in the low bits.
  const Words small = reinterpret_cast<Words>(reinterpret_cast<Vec>(magnitude) + 0.5f) - 0x3f000000u;
  const Words normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  Words half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477ff000u ? Words{} + 0x7c00u : half;  // 65520 and above round to infinity
  half = magnitude > 0x7f800000u ? Words{} + 0x7e00u : half;
  return narrow(sign | half);
#endif
}

template <typename Scalar>
inline void store(Scalar *p, Vec v) {
  const Shorts bits = round_to_bits(v, Scalar{});
  std::memcpy(p, &bits, sizeof bits);
}

// Storing past the caches, for tensors that are much larger than these: p is aligned to the size of the vector stored.

inline void stream(float *p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#elif defined(__AVX__)
  _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
#elif defined(__x86_64__)
  _mm_stream_ps(p, reinterpret_cast<__m128>(v));
#else
  store(p, v);
#endif
}

template <typename Scalar>
inline void stream(Scalar *p, Vec v) {
  const Shorts bits = round_to_bits(v, Scalar{});
#if defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i *>(p), reinterpret_cast<__m256i>(bits));
#elif defined(__AVX__)
  _mm_stream_si128(reinterpret_cast<__m128i *>(p), reinterpret_cast<__m128i>(bits));
#else
  std::memcpy(p, &bits, sizeof bits);
#endif
}

inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The end of a row that is not a multiple of kLanes long: the missing lanes are zero, and are not stored.

template <typename Scalar>
inline Vec load_some(const Scalar *p, int64_t count) {
  Scalar lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}

template <typename Scalar>
inline void store_some(Scalar *p, Vec v, int64_t count) {
  Scalar lanes[kLanes];
  store(lanes, v);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

template <typename Scalar>
inline Vec load_up_to(const Scalar *p, int64_t count) {
  return count >= kLanes ? load(p) : load_some(p, count);
}

template <bool kStream, typename Scalar>
inline void put(Scalar *p, Vec v) {
  if constexpr (kStream) {
    stream(p, v);
  } else {
    store(p, v);
  }
}

template <bool kStream, typename Scalar>
inline void put_up_to(Scalar *p, Vec v, int64_t count) {
  if (count >= kLanes) {
    put<kStream>(p, v);
  } else {
    store_some(p, v, count);
  }
}

// Sums of lanes, eight vectors at a time, by halving: a step takes two vectors made of segments of `kSegment` lanes and
// adds the two halves of each segment, so that one vector with twice the segments of half the length is left.

inline Vec shuffle(Vec a, Vec b, Ints lanes) {
#if defined(__clang__)
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = lanes[i] < kLanes ? a[lanes[i]] : b[lanes[i] - kLanes];
  return v;
#else
  return __builtin_shuffle(a, b, lanes);
#endif
}

template <int kSegment>
inline Vec add_halves(Vec a, Vec b) {
  Ints low = {};
  for (int i = 0; i < kLanes; ++i) low[i] = i / (kSegment / 2) * kSegment + i % (kSegment / 2);
  return shuffle(a, b, low) + shuffle(a, b, low + kSegment / 2);
}

// sums[i] = the sum of the lanes of v[i], for i < 8
inline void sum_lanes(const Vec *v, float *sums) {
  if constexpr (kLanes == 16) {
    const Vec ab = add_halves<16>(v[0], v[1]), cd = add_halves<16>(v[2], v[3]);
    const Vec ef = add_halves<16>(v[4], v[5]), gh = add_halves<16>(v[6], v[7]);
    const Vec all = add_halves<4>(add_halves<8>(ab, cd), add_halves<8>(ef, gh));
    const Vec result = add_halves<2>(all, all);
    std::memcpy(sums, &result, 8 * sizeof(float));
  } else if constexpr (kLanes == 8) {
    const Vec ab = add_halves<8>(v[0], v[1]), cd = add_halves<8>(v[2], v[3]);
    const Vec ef = add_halves<8>(v[4], v[5]), gh = add_halves<8>(v[6], v[7]);
    store(sums, add_halves<2>(add_halves<4>(ab, cd), add_halves<4>(ef, gh)));
  } else {
    store(sums, add_halves<2>(add_halves<4>(v[0], v[1]), add_halves<4>(v[2], v[3])));
    store(sums + 4, add_halves<2>(add_halves<4>(v[4], v[5]), add_halves<4>(v[6], v[7])));
  }
}

// e to the x, to about one unit in the last place of a double; 0 below -708, inf above 709.
inline Doubles exp(Doubles x) {
  Doubles bounded = x > 709.0 ? splat_double(709.0) : x;  // comparisons with NaN are false: it passes
  bounded = bounded < -708.0 ? splat_double(-708.0) : bounded;
  const double shift = 0x1.8p52;  // adding it rounds to an integer and leaves that integer in the low bits
  const Doubles shifted = bounded * 0x1.71547652b82fep0 + shift;
  const Doubles k = shifted - shift;
  const Doubles r = (bounded - k * 0x1.62e42fefa0000p-1) - k * 0x1.cf79abc9e3b3ap-40;
  Doubles p = r * (1.0 / 479001600.0) + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const Longs scaled = reinterpret_cast<Longs>(p) + (reinterpret_cast<Longs>(shifted) << 52);
  Doubles result = reinterpret_cast<Doubles>(scaled);
  result = x > 709.0 ? splat_double(__builtin_inf()) : result;
  result = x < -708.0 ? Doubles{} : result;
  return x == x ? result : x;
}

}  // namespace MHC_ISA
}  // namespace mhc
