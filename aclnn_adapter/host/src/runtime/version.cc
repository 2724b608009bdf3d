// Which CANN this claims to be. CANN_VERSION comes from the build, which writes it into the version files as well.
#include <cstring>

#include "runtime/acl_abi.h"
#include "runtime/host.h"

namespace {

struct PackageVersion {  // aclCANNPackageVersion
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};

}  // namespace

extern "C" {

HOST_API aclError aclsysGetVersionStr(const char *, char *version) {
  std::memcpy(version, CANN_VERSION, sizeof CANN_VERSION);
  return host::kSuccess;
}

HOST_API aclError aclsysGetCANNVersion(int, PackageVersion *package) {
  *package = {};
  return aclsysGetVersionStr(nullptr, package->version);
}

}  // extern "C"
