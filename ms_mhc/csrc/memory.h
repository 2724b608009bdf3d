// SPDX-License-Identifier: Apache-2.0
// Memory: scratch, aligned for the widest vectors, and how large tensors are written.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace mhc {

inline int64_t rounded_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

inline bool aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(kAlignment) == 0; }

// Whether to write a tensor of these rows past the caches: it is large enough for whoever reads it next not to find it
// there anyway, and vectors lie on whole cache lines.
inline bool past_caches(const void *p, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kEnough = 4 << 20;
  return rows * row_bytes > kEnough && aligned(p) && row_bytes % kAlignment == 0;
}

// Scratch that calls leave behind for the next one (memory.cc). Throws std::bad_alloc.
void *take_memory(int64_t bytes);
void give_memory(void *data) noexcept;

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : data_(static_cast<T *>(take_memory(rounded_up(count * static_cast<int64_t>(sizeof(T)) + 1, kAlignment)))) {}
  ~Buffer() { give_memory(data_); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  T *get() const { return data_; }

 private:
  T *data_;
};

// A separate piece for each thread; pieces share no cache line.
class ThreadScratch {
 public:
  ThreadScratch(int64_t bytes, int threads) : stride_(rounded_up(bytes, 2 * kAlignment)), memory_(stride_ * threads) {}
  void *of(int thread) const { return memory_.get() + stride_ * thread; }

 private:
  int64_t stride_;
  Buffer<unsigned char> memory_;
};

}  // namespace mhc
