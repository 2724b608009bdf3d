// How communicators begin and end, and what they say about themselves.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "hccl/boundary.h"

namespace {

using host::hccl::Communicator;
using host::hccl::guarded;
using host::hccl::require;
using host::hccl::text;

constexpr std::size_t kNameRoom = 128;  // COMM_NAME_MAX_LENGTH
constexpr char kPrefix[] = "host-cann-hccl-";

std::string hexadecimal(std::uint64_t number) {
  std::ostringstream stream;
  stream << std::hex << number;
  return stream.str();
}

// FNV-1a: short names that all ranks derive alike.
std::string digest(const std::string &of) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : of) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hexadecimal(hash);
}

std::string new_name() {
  std::random_device device;
  const std::uint64_t number = (static_cast<std::uint64_t>(device()) << 32) | device();
  return text(kPrefix, getpid(), "-", hexadecimal(number));
}

HcclResult open(const char *caller, const std::string &name, std::uint32_t rank, std::uint32_t size, HcclComm *comm) {
  return guarded(caller, [&] {
    require(comm != nullptr, HCCL_E_PTR, "no room for the communicator");
    require(rank < size, HCCL_E_PARA, "rank ", rank, " of ", size, " ranks");
    *comm = host::hccl::keep(std::make_shared<Communicator>(name, rank, size));
  });
}

std::string root_name(const HcclRootInfo *root) {
  return root == nullptr ? "" : std::string(root->internal, strnlen(root->internal, kNameRoom));
}

// The ranks that a rank table names: one "rank_id" each.
std::uint32_t ranks_in(const std::string &table) {
  std::uint32_t count = 0;
  for (auto at = table.find("\"rank_id\""); at != std::string::npos; at = table.find("\"rank_id\"", at + 1)) ++count;
  return count;
}

HcclResult open_from_table(const char *caller, const char *path, std::uint32_t rank, HcclComm *comm) {
  std::ifstream file(path != nullptr ? path : "");
  std::stringstream table;
  table << file.rdbuf();
  if (!file) {
    host::report_error(text(caller, ": cannot read the rank table ", path != nullptr ? path : "(null)"));
    return HCCL_E_PARA;
  }
  return open(caller, kPrefix + digest(path + table.str()), rank, ranks_in(table.str()), comm);
}

}  // namespace

extern "C" {

HOST_API HcclResult HcclGetRootInfo(HcclRootInfo *root) {
  return guarded("HcclGetRootInfo", [&] {
    require(root != nullptr, HCCL_E_PTR, "no room for the root's information");
    *root = {};
    const std::string name = new_name();
    std::memcpy(root->internal, name.data(), name.size());
  });
}

HOST_API HcclResult HcclCommInitRootInfo(std::uint32_t ranks, const HcclRootInfo *root, std::uint32_t rank,
                                         HcclComm *comm) {
  return guarded("HcclCommInitRootInfo", [&] {
    require(root_name(root).rfind(kPrefix, 0) == 0, HCCL_E_PARA, "not the root information of HcclGetRootInfo");
    require(comm != nullptr, HCCL_E_PTR, "no room for the communicator");
    require(rank < ranks, HCCL_E_PARA, "rank ", rank, " of ", ranks, " ranks");
    *comm = host::hccl::keep(std::make_shared<Communicator>(root_name(root), rank, ranks));
  });
}

HOST_API HcclResult HcclCommInitRootInfoConfig(std::uint32_t ranks, const HcclRootInfo *root, std::uint32_t rank,
                                               const HcclCommConfig *, HcclComm *comm) {
  return HcclCommInitRootInfo(ranks, root, rank, comm);
}

HOST_API HcclResult HcclCommInitClusterInfo(const char *table, std::uint32_t rank, HcclComm *comm) {
  return open_from_table("HcclCommInitClusterInfo", table, rank, comm);
}

HOST_API HcclResult HcclCommInitClusterInfoConfig(const char *table, std::uint32_t rank, HcclCommConfig *,
                                                  HcclComm *comm) {
  return open_from_table("HcclCommInitClusterInfoConfig", table, rank, comm);
}

HOST_API HcclResult HcclCreateSubCommConfig(HcclComm *world, std::uint32_t ranks, std::uint32_t *members,
                                            std::uint64_t identifier, std::uint32_t rank, HcclCommConfig *,
                                            HcclComm *comm) {
  constexpr char kCaller[] = "HcclCreateSubCommConfig";
  std::string name;
  const HcclResult found = guarded(kCaller, [&] {
    require(world != nullptr && (members != nullptr || ranks == 0), HCCL_E_PTR, "no world communicator or no ranks");
    name = text(host::hccl::find(*world, kCaller)->name(), "/", identifier);
    for (std::uint32_t i = 0; i < ranks; ++i) name += text(",", members[i]);
  });
  return found == HCCL_SUCCESS ? open(kCaller, kPrefix + digest(name), rank, ranks, comm) : found;
}

HOST_API HcclResult HcclCommDestroy(HcclComm comm) {
  return guarded("HcclCommDestroy", [&] { host::hccl::forget(comm); });
}

HOST_API HcclResult HcclGetRankId(HcclComm comm, std::uint32_t *rank) {
  return guarded("HcclGetRankId", [&] { *rank = host::hccl::find(comm, "HcclGetRankId")->rank(); });
}

HOST_API HcclResult HcclGetRankSize(HcclComm comm, std::uint32_t *size) {
  return guarded("HcclGetRankSize", [&] { *size = host::hccl::find(comm, "HcclGetRankSize")->size(); });
}

HOST_API HcclResult HcclGetCommName(HcclComm comm, char *name) {
  return guarded("HcclGetCommName", [&] {
    const std::string known = host::hccl::find(comm, "HcclGetCommName")->name();
    std::memcpy(name, known.c_str(), known.size() + 1);
  });
}

// Every call has returned its own result already.
HOST_API HcclResult HcclGetCommAsyncError(HcclComm, HcclResult *result) {
  *result = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}

HOST_API const char *HcclGetErrorString(HcclResult result) {
  switch (result) {
    case HCCL_SUCCESS:
      return "success";
    case HCCL_E_PARA:
      return "wrong parameter";
    case HCCL_E_PTR:
      return "null pointer, or no such object";
    case HCCL_E_NOT_SUPPORT:
      return "not served by the host CANN";
    case HCCL_E_SYSCALL:
      return "a system call failed";
    case HCCL_E_TIMEOUT:
      return "another rank did not come in time";
    case HCCL_E_REMOTE:
      return "another rank has ended";
    default:
      return "internal error";
  }
}

}  // extern "C"
