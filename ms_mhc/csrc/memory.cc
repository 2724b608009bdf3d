// SPDX-License-Identifier: Apache-2.0
// Pages that the system gives for the first time cost more than what is computed in them: scratch is kept for the next
// call, up to a limit.
#include "memory.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace mhc {
namespace {

constexpr int64_t kMostKept = 64 << 20;

struct Free {
  void operator()(void *data) const { std::free(data); }
};

struct Block {
  std::unique_ptr<void, Free> data;
  int64_t bytes;
};

class Pool {
 public:
  // The smallest block that is large enough and at most twice as large, or nothing.
  void *find(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t best = blocks_.size();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].bytes < bytes || blocks_[i].bytes > 2 * bytes) continue;
      if (best == blocks_.size() || blocks_[i].bytes < blocks_[best].bytes) best = i;
    }
    if (best == blocks_.size()) return nullptr;
    kept_ -= blocks_[best].bytes;
    void *data = blocks_[best].data.release();
    blocks_[best] = std::move(blocks_.back());
    blocks_.pop_back();
    return data;
  }

  void keep(std::unique_ptr<void, Free> data, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_ + bytes > kMostKept) return;
    blocks_.push_back({std::move(data), bytes});
    kept_ += bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
  int64_t kept_ = 0;
};

// Never destroyed: a thread may still compute while the process ends.
Pool &pool() {
  static Pool &made = *std::make_unique<Pool>().release();
  return made;
}

}  // namespace

// Every block begins with its size: what find() gave may be larger than what was asked for.
void *take_memory(int64_t bytes) {
  int64_t *block = static_cast<int64_t *>(pool().find(bytes + kAlignment));
  if (!block) {
    const int64_t size = bytes + kAlignment;
    block = static_cast<int64_t *>(std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(size)));
    if (!block) throw std::bad_alloc();
    *block = size;
  }
  return block + kAlignment / static_cast<int64_t>(sizeof(int64_t));
}

void give_memory(void *data) noexcept {
  int64_t *block = static_cast<int64_t *>(data) - kAlignment / static_cast<int64_t>(sizeof(int64_t));
  std::unique_ptr<void, Free> owned(block);
  try {
    pool().keep(std::move(owned), *block);
  } catch (...) {  // no memory for the list: the block is freed
  }
}

}  // namespace mhc
