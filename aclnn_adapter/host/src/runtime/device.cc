// What the one device of the host CANN says about itself.
#include <cstdint>

#include "runtime/acl_abi.h"
#include "runtime/host.h"

namespace {

constexpr std::uint32_t kCores = 24;

aclError answer(std::uint32_t *value, std::uint32_t fact) {
  *value = fact;
  return host::kSuccess;
}

}  // namespace

extern "C" {

HOST_API aclError aclrtGetDevice(std::int32_t *device) {
  *device = 0;
  return host::kSuccess;
}

HOST_API aclError aclrtGetDeviceCount(std::uint32_t *count) { return answer(count, 1); }

HOST_API aclError aclrtGetRunMode(int *mode) {
  *mode = 1;  // ACL_HOST: the program runs beside the device, not on it
  return host::kSuccess;
}

HOST_API const char *aclrtGetSocName() { return host::settings().soc_name.c_str(); }

HOST_API aclError aclrtDeviceGetStreamPriorityRange(std::int32_t *least, std::int32_t *greatest) {
  *least = *greatest = 0;
  return host::kSuccess;
}

HOST_API aclError aclrtDeviceGetBareTgid(std::int32_t *process) {
  *process = 1;
  return host::kSuccess;
}

HOST_API aclError aclrtDeviceCanAccessPeer(std::int32_t *can, std::int32_t, std::int32_t) {
  *can = 0;
  return host::kSuccess;
}

HOST_API aclError aclrtGetDeviceResLimit(std::int32_t, int, std::uint32_t *value) { return answer(value, kCores); }
HOST_API aclError aclrtGetStreamResLimit(aclrtStream, int, std::uint32_t *value) { return answer(value, kCores); }
HOST_API aclError aclrtGetResInCurrentThread(int, std::uint32_t *value) { return answer(value, kCores); }

HOST_API aclError aclrtGetSysParamOpt(int, std::int64_t *value) {
  *value = 0;  // determinism is not forced: it is so anyway
  return host::kSuccess;
}

HOST_API aclError aclrtGetMemUceInfo(std::int32_t, void *, std::size_t, std::size_t *found) {
  *found = 0;
  return host::kSuccess;
}

// The description of an allocator that MindSpore offers; kernels here need none.
HOST_API void *aclrtAllocatorCreateDesc() {
  static char description[1];
  return description;
}

HOST_API aclError aclmdlRICaptureGetInfo(aclrtStream, int *status, void **model) {
  *status = 0;  // not capturing
  *model = nullptr;
  return host::kSuccess;
}

}  // extern "C"
