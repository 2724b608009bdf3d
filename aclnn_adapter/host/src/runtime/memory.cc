// Device memory. Physical memory is one sparse memory file; an address range is reserved without access and gets
// access where physical memory is mapped into it, so that what MindSpore does with its virtual memory pool holds here.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "runtime/acl_abi.h"
#include "runtime/host.h"

namespace {

constexpr std::size_t kAlignment = 512;

struct Physical {
  off_t offset;
  std::size_t bytes;
};

class Device {
 public:
  static Device &instance() {
    static auto *device = new Device;
    return *device;
  }

  void *allocate(std::size_t bytes) {
    std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    if (live_ + rounded > host::settings().device_memory) return nullptr;
    void *address = std::aligned_alloc(kAlignment, rounded);
    if (address != nullptr) add(address, rounded);
    return address;
  }

  bool release(void *address) {
    if (!forget(address)) return false;
    std::free(address);
    return true;
  }

  void *reserve(std::size_t bytes) {
    void *address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    reserved_[address] = bytes;
    return address;
  }

  bool release_reserved(void *address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = reserved_.find(address);
    if (found == reserved_.end()) return false;
    munmap(address, found->second);
    reserved_.erase(found);
    return true;
  }

  Physical *allocate_physical(std::size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (physical_ + bytes > host::settings().device_memory) return nullptr;
    if (file_ < 0) file_ = memfd_create("host-cann-device", MFD_CLOEXEC);
    off_t start = end_;
    if (file_ < 0 || ftruncate(file_, start + static_cast<off_t>(bytes)) != 0) return nullptr;
    end_ += static_cast<off_t>(bytes);
    physical_ += bytes;
    return new Physical{start, bytes};
  }

  void release_physical(Physical *memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->offset, static_cast<off_t>(memory->bytes));
    physical_ -= memory->bytes;
    delete memory;
  }

  bool map(void *address, std::size_t bytes, std::size_t offset, const Physical &memory) {
    if (offset + bytes > memory.bytes) return false;
    void *mapped = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                        memory.offset + static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) return false;
    add(address, bytes);
    return true;
  }

  bool unmap(void *address) {
    std::size_t bytes = forget(address);
    if (bytes == 0) return false;
    return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
  }

  // Neighbouring blocks count as one: MindSpore's pool hands out ranges that span several mappings.
  bool contains(const void *address, std::size_t bytes) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t end = at + bytes;
    std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) return false;
    for (--block; block != blocks_.end() && block->first <= at; ++block) {
      at = block->first + block->second;
      if (at >= end) return true;
    }
    return false;
  }

  std::size_t live() const { return live_; }

 private:
  void add(void *address, std::size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<std::uintptr_t>(address)] = bytes;
    live_ += bytes;
  }

  std::size_t forget(void *address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == blocks_.end()) return 0;
    std::size_t bytes = found->second;
    live_ -= bytes;
    blocks_.erase(found);
    return bytes;
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> blocks_;
  std::map<void *, std::size_t> reserved_;
  std::atomic<std::size_t> live_{0};
  std::size_t physical_ = 0;
  off_t end_ = 0;
  int file_ = -1;
};

aclError invalid(const std::string &message) {
  host::report_error(message);
  return host::kInvalidParameter;
}

aclError check_copy(const void *to, std::size_t room, const void *from, std::size_t bytes, aclrtMemcpyKind kind) {
  if (bytes == 0) return host::kSuccess;
  if (to == nullptr || from == nullptr) return invalid("aclrtMemcpy: a null address");
  if (bytes > room) {
    return invalid("aclrtMemcpy: " + std::to_string(bytes) + " bytes into room for " + std::to_string(room));
  }
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (to_device && !host::is_device_memory(to, bytes)) {
    return invalid("aclrtMemcpy: the destination is not mapped device memory");
  }
  if (from_device && !host::is_device_memory(from, bytes)) {
    return invalid("aclrtMemcpy: the source is not mapped device memory");
  }
  return host::kSuccess;
}

}  // namespace

namespace host {

bool is_device_memory(const void *address, std::size_t bytes) { return Device::instance().contains(address, bytes); }

std::size_t live_device_bytes() { return Device::instance().live(); }

}  // namespace host

extern "C" {

HOST_API aclError aclrtMalloc(void **address, std::size_t bytes, int) {
  *address = Device::instance().allocate(bytes);
  if (*address != nullptr) return host::kSuccess;
  host::report_error("aclrtMalloc: no room on the device for " + std::to_string(bytes) + " bytes");
  return host::kOutOfMemory;
}

HOST_API aclError aclrtMallocAlign32(void **address, std::size_t bytes, int policy) {
  return aclrtMalloc(address, bytes, policy);
}

HOST_API aclError aclrtFree(void *address) {
  return Device::instance().release(address) ? host::kSuccess : invalid("aclrtFree: not the start of device memory");
}

HOST_API aclError aclrtMallocHost(void **address, std::size_t bytes) {
  *address = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  return *address != nullptr ? host::kSuccess : host::kOutOfMemory;
}

HOST_API aclError aclrtFreeHost(void *address) {
  std::free(address);
  return host::kSuccess;
}

HOST_API aclError aclrtReserveMemAddress(void **address, std::size_t bytes, std::size_t, void *, std::uint64_t) {
  *address = Device::instance().reserve(bytes);
  return *address != nullptr ? host::kSuccess : host::kOutOfMemory;
}

HOST_API aclError aclrtReleaseMemAddress(void *address) {
  return Device::instance().release_reserved(address) ? host::kSuccess
                                                      : invalid("aclrtReleaseMemAddress: not a reserved address");
}

HOST_API aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, std::size_t bytes, const void *, std::uint64_t) {
  *handle = Device::instance().allocate_physical(bytes);
  if (*handle != nullptr) return host::kSuccess;
  host::report_error("aclrtMallocPhysical: no room on the device for " + std::to_string(bytes) + " bytes");
  return host::kOutOfMemory;
}

HOST_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  if (handle == nullptr) return invalid("aclrtFreePhysical: a null handle");
  Device::instance().release_physical(static_cast<Physical *>(handle));
  return host::kSuccess;
}

HOST_API aclError aclrtMapMem(void *address, std::size_t bytes, std::size_t offset, aclrtDrvMemHandle handle,
                              std::uint64_t) {
  if (handle == nullptr) return invalid("aclrtMapMem: a null handle");
  return Device::instance().map(address, bytes, offset, *static_cast<Physical *>(handle))
           ? host::kSuccess
           : invalid("aclrtMapMem: the memory cannot be mapped there");
}

HOST_API aclError aclrtUnmapMem(void *address) {
  return Device::instance().unmap(address) ? host::kSuccess : invalid("aclrtUnmapMem: nothing is mapped there");
}

HOST_API aclError aclrtMemcpy(void *to, std::size_t room, const void *from, std::size_t bytes, aclrtMemcpyKind kind) {
  aclError status = check_copy(to, room, from, bytes, kind);
  if (status == host::kSuccess && bytes > 0) std::memmove(to, from, bytes);
  return status;
}

HOST_API aclError aclrtMemcpyAsync(void *to, std::size_t room, const void *from, std::size_t bytes,
                                   aclrtMemcpyKind kind, aclrtStream) {
  return aclrtMemcpy(to, room, from, bytes, kind);
}

HOST_API aclError aclrtMemset(void *to, std::size_t room, std::int32_t value, std::size_t bytes) {
  if (bytes > room) return invalid("aclrtMemset: more bytes than there is room for");
  if (!host::is_device_memory(to, bytes)) return invalid("aclrtMemset: not mapped device memory");
  std::memset(to, value, bytes);
  return host::kSuccess;
}

HOST_API aclError aclrtMemsetAsync(void *to, std::size_t room, std::int32_t value, std::size_t bytes, aclrtStream) {
  return aclrtMemset(to, room, value, bytes);
}

HOST_API aclError aclrtGetMemInfo(int, std::size_t *free, std::size_t *total) {
  *total = host::settings().device_memory;
  *free = *total - std::min(*total, Device::instance().live());
  return host::kSuccess;
}

HOST_API std::size_t aclDataTypeSize(aclDataType type) { return host::size_of(type); }

}  // extern "C"
