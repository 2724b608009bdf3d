#include "framework/dense.h"

#include <cstring>

#include "framework/rows.h"
#include "framework/status.h"

namespace host {
namespace {

template <typename T>
void copy_as(const Tensor &from, const Tensor &to) {
  const T *source = from.at<T>();
  T *target = to.at<T>();
  Rows<2>(from.shape, {from.strides, to.strides}).for_each([&](auto offsets, std::int64_t count, auto steps) {
    const T *s = source + offsets[0];
    T *t = target + offsets[1];
    if (steps[0] == 1 && steps[1] == 1) {
      std::memmove(t, s, static_cast<std::size_t>(count) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < count; ++i) t[i * steps[1]] = s[i * steps[0]];
    }
  });
}

struct Sixteen {
  std::uint64_t halves[2];
};

Tensor dense_like(const Tensor &tensor, void *data) {
  Tensor dense = tensor;
  dense.strides = contiguous_strides(tensor.shape);
  dense.offset = 0;
  dense.data = data;
  return dense;
}

std::unique_ptr<char[]> buffer_for(const Tensor &tensor) {
  return std::make_unique<char[]>(static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
}

}  // namespace

void copy_elements(const Tensor &from, const Tensor &to) {
  switch (size_of(from.dtype)) {
    case 1: return copy_as<std::uint8_t>(from, to);
    case 2: return copy_as<std::uint16_t>(from, to);
    case 4: return copy_as<std::uint32_t>(from, to);
    case 8: return copy_as<std::uint64_t>(from, to);
    case 16: return copy_as<Sixteen>(from, to);
    default: throw Failure(kInvalid, text("elements of ", from.describe(), " cannot be copied"));
  }
}

DenseInput::DenseInput(const Tensor *tensor) {
  if (tensor == nullptr) return;
  if (tensor->contiguous()) {
    data_ = tensor->at<char>();
    return;
  }
  buffer_ = buffer_for(*tensor);
  data_ = buffer_.get();
  copy_elements(*tensor, dense_like(*tensor, buffer_.get()));
}

DenseOutput::DenseOutput(const Tensor *tensor) : tensor_(tensor) {
  if (tensor == nullptr) return;
  if (tensor->contiguous()) {
    data_ = tensor->at<char>();
    return;
  }
  buffer_ = buffer_for(*tensor);
  data_ = buffer_.get();
}

void DenseOutput::write() const {
  if (buffer_ != nullptr) copy_elements(dense_like(*tensor_, buffer_.get()), *tensor_);
}

}  // namespace host
