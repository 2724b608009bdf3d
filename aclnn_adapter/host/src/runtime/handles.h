// Objects behind the opaque pointers of a C interface.
//
// A handle is a number that is never used twice, not an address: a handle that was destroyed is recognised for ever,
// even when the memory of its object serves another one.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/host.h"

namespace host {

template <typename Object, typename Handle>
class Handles {
 public:
  explicit Handles(Kind kind) : kind_(kind) {}

  Handle *insert(std::shared_ptr<Object> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto *handle = reinterpret_cast<Handle *>(next_);
    next_ += kStep;
    objects_.emplace(handle, std::move(object));
    count(kind_, 1);
    return handle;
  }

  // Null when there is no such object any more, or never was.
  std::shared_ptr<Object> find(const Handle *handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Object> remove(const Handle *handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    count(kind_, -1);
    return object;
  }

  template <typename Visit>
  void for_each(const Visit &visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &entry : objects_) visit(*entry.second);
  }

  bool contains(const void *handle) const { return find(static_cast<const Handle *>(handle)) != nullptr; }

  // Whether the handle was given out once, living or not.
  bool known(const Handle *handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto number = reinterpret_cast<std::uintptr_t>(handle);
    return number >= kStep && number < next_ && number % kStep == 0;
  }

 private:
  static constexpr std::uintptr_t kStep = 16;  // aligned like a real pointer

  const Kind kind_;
  mutable std::mutex mutex_;
  std::uintptr_t next_ = kStep;
  std::unordered_map<const Handle *, std::shared_ptr<Object>> objects_;
};

// Lives until the process has ended: libraries that are finalised later still destroy their handles.
template <typename Table>
Table &immortal(Kind kind) {
  static auto *table = new Table(kind);
  return *table;
}

}  // namespace host
