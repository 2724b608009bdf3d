#include "operators/engine.h"

#include "framework/floats.h"

namespace host {
namespace {

// Calls work(E{}) with the C++ type of an element.
template <typename Work>
void with_element(aclDataType type, const Work &work) {
  switch (type) {
    case ACL_FLOAT: return work(float{});
    case ACL_FLOAT16: return work(Half{});
    case ACL_BF16: return work(BFloat16{});
    case ACL_DOUBLE: return work(double{});
    case ACL_BOOL: return work(bool{});
    case ACL_INT8: return work(std::int8_t{});
    case ACL_UINT8: return work(std::uint8_t{});
    case ACL_INT16: return work(std::int16_t{});
    case ACL_INT32: return work(std::int32_t{});
    case ACL_INT64: return work(std::int64_t{});
    case ACL_UINT64: return work(std::uint64_t{});
    default: throw Failure(kInvalid, text("dtype ", dtype_name(type), " is not served by the host CANN"));
  }
}

template <typename C, typename E>
C widen(E value) {
  if constexpr (std::is_same_v<E, Half> || std::is_same_v<E, BFloat16>) {
    return static_cast<C>(to_float(value));
  } else {
    return static_cast<C>(value);
  }
}

template <typename E, typename C>
E narrow(C value) {
  if constexpr (std::is_same_v<E, Half>) {
    return to_half(static_cast<float>(value));
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<E, bool>) {
    return value != C{};
  } else if constexpr (std::is_integral_v<E> && std::is_floating_point_v<C>) {
    return static_cast<E>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<E>(value);
  }
}

}  // namespace

template <typename C>
void load(const Tensor &tensor, std::int64_t offset, std::int64_t step, std::int64_t count, C *to) {
  with_element(tensor.dtype, [&](auto zero) {
    const auto *from = tensor.at<decltype(zero)>() + offset;
    if (step == 0) {
      const C value = widen<C>(*from);
      for (std::int64_t i = 0; i < count; ++i) to[i] = value;
    } else if (step == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = widen<C>(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = widen<C>(from[i * step]);
    }
  });
}

template <typename C>
void store(const C *from, const Tensor &tensor, std::int64_t offset, std::int64_t step, std::int64_t count) {
  with_element(tensor.dtype, [&](auto zero) {
    using E = decltype(zero);
    E *to = tensor.at<E>() + offset;
    if (step == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = narrow<E>(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * step] = narrow<E>(from[i]);
    }
  });
}

#define HOST_CONVERSIONS(C)                                                                          \
  template void load(const Tensor &, std::int64_t, std::int64_t, std::int64_t, C *);                 \
  template void store(const C *, const Tensor &, std::int64_t, std::int64_t, std::int64_t);
HOST_CONVERSIONS(float)
HOST_CONVERSIONS(double)
HOST_CONVERSIONS(std::int64_t)
#undef HOST_CONVERSIONS

Shape broadcast_strides(const Tensor &tensor, const Shape &shape) {
  require(tensor.rank() <= shape.size(), kInvalid, tensor.describe(), " does not broadcast to ", to_string(shape));
  Shape strides(shape.size(), 0);
  const std::size_t more = shape.size() - tensor.rank();
  for (std::size_t i = 0; i < tensor.rank(); ++i) {
    const bool same = tensor.shape[i] == shape[more + i];
    require(same || tensor.shape[i] == 1, kInvalid, tensor.describe(), " does not broadcast to ", to_string(shape));
    strides[more + i] = same ? tensor.strides[i] : 0;
  }
  return strides;
}

std::size_t axis_of(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  const std::int64_t counted = axis < 0 ? axis + signed_rank : axis;
  require(counted >= 0 && counted < signed_rank, kInvalid, "axis ", axis, " of a tensor of rank ", rank);
  return static_cast<std::size_t>(counted);
}

void check_broadcast(const Tensor &out, std::initializer_list<const Tensor *> inputs) {
  for (const Tensor *input : inputs) broadcast_strides(*input, out.shape);
}

}  // namespace host
