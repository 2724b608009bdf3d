#include "hccl/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "framework/floats.h"
#include "hccl/call.h"
#include "hccl/failure.h"

namespace host::hccl {
namespace {

// How a stored type is computed with. Integers wrap around, which only unsigned ones may do in C++.
template <typename Stored>
struct Number {
  using Wide = std::conditional_t<std::is_integral_v<Stored> && (sizeof(Stored) < 8), std::int64_t, Stored>;
  static Wide widen(Stored value) { return static_cast<Wide>(value); }
  static Stored narrow(Wide value) { return static_cast<Stored>(value); }
};

template <>
struct Number<Half> {
  using Wide = float;
  static float widen(Half value) { return to_float(value); }
  static Half narrow(float value) { return to_half(value); }
};

template <>
struct Number<BFloat16> {
  using Wide = float;
  static float widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(float value) { return to_bfloat16(value); }
};

template <typename Wide>
Wide add(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename Wide>
Wide multiply(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename Stored, typename Combine>
void run(const std::vector<const void *> &parts, std::size_t count, void *out, const Combine &combine) {
  using N = Number<Stored>;
  for (std::size_t i = 0; i < count; ++i) {
    auto value = N::widen(static_cast<const Stored *>(parts[0])[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) {
      value = combine(value, N::widen(static_cast<const Stored *>(parts[p])[i]));
    }
    static_cast<Stored *>(out)[i] = N::narrow(value);
  }
}

template <typename Stored>
void typed(const std::vector<const void *> &parts, std::size_t count, HcclReduceOp op, void *out) {
  using Wide = typename Number<Stored>::Wide;
  switch (op) {
    case HCCL_REDUCE_SUM:
      return run<Stored>(parts, count, out, add<Wide>);
    case HCCL_REDUCE_PROD:
      return run<Stored>(parts, count, out, multiply<Wide>);
    case HCCL_REDUCE_MAX:
      return run<Stored>(parts, count, out, [](Wide a, Wide b) { return std::max(a, b); });
    case HCCL_REDUCE_MIN:
      return run<Stored>(parts, count, out, [](Wide a, Wide b) { return std::min(a, b); });
  }
  throw Failure(HCCL_E_NOT_SUPPORT, text("reduction ", static_cast<int>(op), " is not served"));
}

}  // namespace

void reduce(const std::vector<const void *> &parts, std::size_t count, HcclDataType dtype, HcclReduceOp op, void *out) {
  switch (dtype) {
    case HCCL_DATA_TYPE_INT8:
      return typed<std::int8_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_INT16:
      return typed<std::int16_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_INT32:
      return typed<std::int32_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_FP16:
      return typed<Half>(parts, count, op, out);
    case HCCL_DATA_TYPE_FP32:
      return typed<float>(parts, count, op, out);
    case HCCL_DATA_TYPE_INT64:
      return typed<std::int64_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_UINT64:
      return typed<std::uint64_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_UINT8:
      return typed<std::uint8_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_UINT16:
      return typed<std::uint16_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_UINT32:
      return typed<std::uint32_t>(parts, count, op, out);
    case HCCL_DATA_TYPE_FP64:
      return typed<double>(parts, count, op, out);
    case HCCL_DATA_TYPE_BFP16:
      return typed<BFloat16>(parts, count, op, out);
  }
  throw Failure(HCCL_E_NOT_SUPPORT, text("data type ", static_cast<int>(dtype), " is not served"));
}

}  // namespace host::hccl
