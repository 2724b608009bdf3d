// Contiguous access to strided tensors: kernels that take dense arrays read and write through these.
#pragma once

#include <memory>

#include "framework/objects.h"

namespace host {

// Copies elements from one view to another of the same shape and element size.
HOST_API void copy_elements(const Tensor &from, const Tensor &to);

// A dense array with an input's elements: the input's own memory when it is dense already. Null for a null tensor.
class HOST_API DenseInput {
 public:
  explicit DenseInput(const Tensor *tensor);
  template <typename T>
  const T *get() const {
    return static_cast<const T *>(data_);
  }

 private:
  std::unique_ptr<char[]> buffer_;
  const void *data_ = nullptr;
};

// A dense array whose elements reach the output by write(). Null for a null tensor.
class HOST_API DenseOutput {
 public:
  explicit DenseOutput(const Tensor *tensor);
  template <typename T>
  T *get() const {
    return static_cast<T *>(data_);
  }
  void write() const;

 private:
  const Tensor *tensor_;
  std::unique_ptr<char[]> buffer_;
  void *data_ = nullptr;
};

}  // namespace host
