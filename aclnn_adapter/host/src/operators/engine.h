// Elementwise computation over strided tensors of any dtype.
//
// Elements are converted to one of three types, float, double or int64, computed on in pieces that fit the cache, and
// converted once on the way out. Inputs are broadcast to the shape of the output.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "framework/objects.h"
#include "framework/rows.h"
#include "framework/status.h"

namespace host {

inline constexpr std::int64_t kPiece = 512;

inline bool is_floating(aclDataType type) {
  return type == ACL_FLOAT || type == ACL_FLOAT16 || type == ACL_BF16 || type == ACL_DOUBLE;
}

enum class Compute { kFloat, kDouble, kInteger };

inline Compute compute_type(aclDataType type) {
  return type == ACL_DOUBLE ? Compute::kDouble : is_floating(type) ? Compute::kFloat : Compute::kInteger;
}

// The type in which operands of different dtypes meet.
inline Compute meet(Compute a, Compute b) {
  if (a == Compute::kDouble || b == Compute::kDouble) return Compute::kDouble;
  return a == Compute::kFloat || b == Compute::kFloat ? Compute::kFloat : Compute::kInteger;
}

// Integers meet as float, for functions that leave them.
inline Compute floating(Compute type) { return type == Compute::kInteger ? Compute::kFloat : type; }

// A scalar does not make a floating-point tensor wider.
inline Compute meet_scalar(Compute tensor, aclDataType scalar) {
  return tensor == Compute::kInteger ? meet(tensor, compute_type(scalar)) : tensor;
}

// Calls work(C{}) with the type to compute in.
template <typename Work>
void with_compute(Compute type, const Work &work) {
  switch (type) {
    case Compute::kFloat: return work(float{});
    case Compute::kDouble: return work(double{});
    case Compute::kInteger: return work(std::int64_t{});
  }
}

// `count` elements from `offset` on, every `step`-th, as C, and back.
template <typename C>
void load(const Tensor &tensor, std::int64_t offset, std::int64_t step, std::int64_t count, C *to);
template <typename C>
void store(const C *from, const Tensor &tensor, std::int64_t offset, std::int64_t step, std::int64_t count);

// The strides of a tensor seen in a larger shape.
Shape broadcast_strides(const Tensor &tensor, const Shape &shape);

// An axis counted from the front, 161002 if there is none such.
std::size_t axis_of(std::int64_t axis, std::size_t rank);

// A shape check that operators with matching operands share.
void check_broadcast(const Tensor &out, std::initializer_list<const Tensor *> inputs);

template <typename C>
using Piece = std::array<C, kPiece>;

template <typename C, std::size_t N, typename Function, std::size_t... K>
void apply_piece(const Function &function, std::array<Piece<C>, N> &piece, std::int64_t count,
                 std::index_sequence<K...>) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    piece[0][i] = static_cast<C>(function(piece[K + 1][i]...));
  }
}

// out = function(inputs...), element by element, computed in C.
template <typename C, typename Function, typename... Inputs>
void map(const Function &function, const Tensor &out, const Inputs &...inputs) {
  constexpr std::size_t kInputs = sizeof...(Inputs);
  const std::array<const Tensor *, kInputs> tensors{&inputs...};
  const Rows<kInputs + 1> rows(out.shape, {out.strides, broadcast_strides(inputs, out.shape)...});
  rows.for_each([&](Steps<kInputs + 1> offsets, std::int64_t count, const Steps<kInputs + 1> &steps) {
    std::array<Piece<C>, kInputs + 1> piece;
    for (std::int64_t start = 0; start < count; start += kPiece) {
      const std::int64_t n = std::min(kPiece, count - start);
      for (std::size_t k = 0; k < kInputs; ++k) {
        load(*tensors[k], offsets[k + 1] + start * steps[k + 1], steps[k + 1], n, piece[k + 1].data());
      }
      apply_piece(function, piece, n, std::make_index_sequence<kInputs>{});
      store(piece[0].data(), out, offsets[0] + start * steps[0], steps[0], n);
    }
  });
}

// The same where the type to compute in is found at run time; `function` takes any of the three.
template <typename Function, typename... Inputs>
void map_in(Compute type, const Function &function, const Tensor &out, const Inputs &...inputs) {
  with_compute(type, [&](auto zero) { map<decltype(zero)>(function, out, inputs...); });
}

}  // namespace host
