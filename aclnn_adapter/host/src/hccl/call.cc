#include "hccl/call.h"

#include <array>

#include "hccl/failure.h"

namespace host::hccl {
namespace {

struct Type {
  const char *name;
  std::size_t bytes;
};

constexpr std::array<Type, 12> kTypes = {{
  {"int8", 1},
  {"int16", 2},
  {"int32", 4},
  {"float16", 2},
  {"float32", 4},
  {"int64", 8},
  {"uint64", 8},
  {"uint8", 1},
  {"uint16", 2},
  {"uint32", 4},
  {"float64", 8},
  {"bfloat16", 2},
}};

constexpr std::array<const char *, 13> kOperations = {
  "HcclAllReduce", "HcclReduce",  "HcclReduceScatter", "HcclReduceScatterV", "HcclAllGather",
  "HcclAllGatherV", "HcclBroadcast", "HcclScatter",    "HcclAlltoAll",       "HcclAlltoAllV",
  "HcclAlltoAllVC", "HcclBarrier",  "HcclSend",
};

constexpr std::array<const char *, 4> kReductions = {"sum", "prod", "max", "min"};

template <typename Names, typename Value>
const char *look_up(const Names &names, Value value) {
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? names[index] : "unknown";
}

bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter || operation == Operation::kReduceScatterV;
}

bool has_root(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kBroadcast || operation == Operation::kScatter;
}

}  // namespace

const char *name(Operation operation) { return look_up(kOperations, operation); }

const char *name(HcclReduceOp reduce) { return look_up(kReductions, reduce); }

const char *name(HcclDataType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kTypes.size() ? kTypes[index].name : "unknown";
}

std::string describe(const Call &call) {
  std::string result = name(call.operation);
  if (call.operation == Operation::kBarrier) return result;
  result += call.count > 0 ? text(" of ", call.count, " ", name(call.dtype)) : text(" of ", name(call.dtype));
  if (reduces(call.operation)) result += text(" (", name(call.reduce), ")");
  if (has_root(call.operation)) result += text(" with root ", call.root);
  return result;
}

std::size_t size_of(HcclDataType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  require(index < kTypes.size(), HCCL_E_NOT_SUPPORT, "data type ", static_cast<int>(dtype), " is not served");
  return kTypes[index].bytes;
}

}  // namespace host::hccl
