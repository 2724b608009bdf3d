// Constants of CANN's binary interface; its types stand in the header that the host CANN installs.
#pragma once

#include "acl/acl_base.h"

namespace host {

inline constexpr aclError kSuccess = 0;
inline constexpr aclError kInvalidParameter = 107000;  // ACL_ERROR_RT_PARAM_INVALID
inline constexpr aclError kReportTimeout = 107019;     // ACL_ERROR_RT_REPORT_TIMEOUT
inline constexpr aclError kOutOfMemory = 207001;       // ACL_ERROR_RT_MEMORY_ALLOCATION

// Zero for a type that has no fixed size here.
constexpr std::size_t size_of(aclDataType type) {
  switch (type) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
      return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

}  // namespace host
