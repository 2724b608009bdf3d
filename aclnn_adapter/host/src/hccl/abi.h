// The part of HCCL's binary interface that the host CANN serves: names and values are the vendor's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/acl_abi.h"

extern "C" {

using HcclComm = void *;

enum HcclResult : int {
  HCCL_SUCCESS = 0,
  HCCL_E_PARA = 1,
  HCCL_E_PTR = 2,
  HCCL_E_INTERNAL = 4,
  HCCL_E_NOT_SUPPORT = 5,
  HCCL_E_SYSCALL = 8,
  HCCL_E_TIMEOUT = 9,
  HCCL_E_REMOTE = 21,
};

enum HcclReduceOp : int {
  HCCL_REDUCE_SUM = 0,
  HCCL_REDUCE_PROD = 1,
  HCCL_REDUCE_MAX = 2,
  HCCL_REDUCE_MIN = 3,
};

enum HcclDataType : int {
  HCCL_DATA_TYPE_INT8 = 0,
  HCCL_DATA_TYPE_INT16 = 1,
  HCCL_DATA_TYPE_INT32 = 2,
  HCCL_DATA_TYPE_FP16 = 3,
  HCCL_DATA_TYPE_FP32 = 4,
  HCCL_DATA_TYPE_INT64 = 5,
  HCCL_DATA_TYPE_UINT64 = 6,
  HCCL_DATA_TYPE_UINT8 = 7,
  HCCL_DATA_TYPE_UINT16 = 8,
  HCCL_DATA_TYPE_UINT32 = 9,
  HCCL_DATA_TYPE_FP64 = 10,
  HCCL_DATA_TYPE_BFP16 = 11,
};

enum HcclSendRecvType : int {
  HCCL_SEND = 0,
  HCCL_RECV = 1,
};

struct HcclSendRecvItem {
  HcclSendRecvType sendRecvType;
  void *buf;
  std::uint64_t count;
  HcclDataType dataType;
  std::uint32_t remoteRank;
};

// One rank fills it, and MindSpore hands it to the others.
struct HcclRootInfo {
  char internal[4108];
};

struct HcclCommConfig;

}  // extern "C"
