// What one rank asks for: every rank of a communicator has to ask for the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "hccl/abi.h"

namespace host::hccl {

enum class Operation : std::uint32_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kReduceScatterV,
  kAllGather,
  kAllGatherV,
  kBroadcast,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kAllToAllVC,
  kBarrier,
  kPointToPoint,
};

// Plain data: it stands in front of every message, so that a rank can tell what the other one means.
struct Call {
  Operation operation;
  HcclDataType dtype = HCCL_DATA_TYPE_INT8;
  std::uint64_t count = 0;  // elements, 0 where every rank has its own number
  HcclReduceOp reduce = HCCL_REDUCE_SUM;
  std::uint32_t root = 0;
};

inline bool operator==(const Call &a, const Call &b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.count == b.count && a.reduce == b.reduce &&
         a.root == b.root;
}

const char *name(Operation operation);
const char *name(HcclDataType dtype);
const char *name(HcclReduceOp reduce);

// "HcclAllReduce of 12 float32 (sum)"
std::string describe(const Call &call);

// Bytes of one element; throws for a type that is not served.
std::size_t size_of(HcclDataType dtype);

}  // namespace host::hccl
