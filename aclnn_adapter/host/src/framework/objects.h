// The objects that callers create and pass to aclnn calls.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/acl_abi.h"
#include "runtime/handles.h"
#include "runtime/host.h"

namespace host {

using Shape = std::vector<std::int64_t>;

HOST_API std::string to_string(const Shape &shape);
HOST_API const char *dtype_name(aclDataType type);

inline std::int64_t element_count(const Shape &shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, [](auto a, auto b) { return a * b; });
}

// A view of storage on the device: element i of the view lies at data + (offset + sum of index * stride) * element size.
struct HOST_API Tensor {
  Shape shape;
  Shape strides;  // in elements
  std::int64_t offset = 0;
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_ND;
  Shape storage_shape;
  void *data = nullptr;

  std::size_t rank() const { return shape.size(); }
  std::int64_t size() const { return element_count(shape); }
  bool empty() const { return size() == 0; }
  bool contiguous() const;
  std::string describe() const;  // "float32[2,3]"

  template <typename T>
  T *at() const {
    return reinterpret_cast<T *>(static_cast<char *>(data) + offset * static_cast<std::int64_t>(size_of(dtype)));
  }

  // The bytes from the storage's start that the view reaches, first and one past the last.
  std::pair<std::int64_t, std::int64_t> reach() const;
};

HOST_API Shape contiguous_strides(const Shape &shape);

struct TensorList {
  std::vector<std::shared_ptr<Tensor>> tensors;
};

struct Scalar {
  aclDataType dtype = ACL_DT_UNDEFINED;
  double real = 0;
  std::int64_t integer = 0;

  template <typename T>
  T as() const {
    bool floating = dtype == ACL_FLOAT || dtype == ACL_DOUBLE || dtype == ACL_FLOAT16 || dtype == ACL_BF16;
    return floating ? static_cast<T>(real) : static_cast<T>(integer);
  }
};

struct ScalarList {
  std::vector<std::shared_ptr<Scalar>> scalars;
};

struct IntArray {
  std::vector<std::int64_t> values;
};

struct BoolArray {
  std::vector<char> values;
};

struct FloatArray {
  std::vector<float> values;
};

// How each class is counted and what its handle is called in C.
template <typename Object>
struct Interface;

template <> struct Interface<Tensor> { using Handle = aclTensor; static constexpr Kind kind = Kind::kTensor; };
template <> struct Interface<TensorList> { using Handle = aclTensorList; static constexpr Kind kind = Kind::kTensorList; };
template <> struct Interface<Scalar> { using Handle = aclScalar; static constexpr Kind kind = Kind::kScalar; };
template <> struct Interface<ScalarList> { using Handle = aclScalarList; static constexpr Kind kind = Kind::kScalarList; };
template <> struct Interface<IntArray> { using Handle = aclIntArray; static constexpr Kind kind = Kind::kIntArray; };
template <> struct Interface<BoolArray> { using Handle = aclBoolArray; static constexpr Kind kind = Kind::kBoolArray; };
template <> struct Interface<FloatArray> { using Handle = aclFloatArray; static constexpr Kind kind = Kind::kFloatArray; };

// Defined once, in libnnopbase, so that every library sees the same objects.
template <typename Object>
HOST_API Handles<Object, typename Interface<Object>::Handle> &objects();

}  // namespace host
