#include "hccl/communicator.h"

#include <unordered_map>
#include <utility>

#include "hccl/failure.h"

namespace host::hccl {
namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<HcclComm, std::shared_ptr<Communicator>> communicators;
};

// Never destroyed: MindSpore may still communicate while the process ends.
Table &table() {
  static auto *instance = new Table;
  return *instance;
}

}  // namespace

Communicator::Communicator(std::string name, std::uint32_t rank, std::uint32_t size)
    : name_(std::move(name)), rank_(rank), size_(size), links_(name_, rank, size) {}

std::vector<Bytes> Communicator::exchange(const Call &call, const std::vector<Part> &parts,
                                          const std::vector<std::size_t> &expected) {
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) give(call, peer, parts[peer]);
  }
  std::vector<Bytes> arrived(size_);
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) arrived[peer] = take(call, peer, expected[peer]);
  }
  return arrived;
}

void Communicator::give(const Call &call, std::uint32_t to, Part part) {
  links_.send(to, Channel::kCollective, call, part.data, part.bytes);
}

Bytes Communicator::take(const Call &call, std::uint32_t from, std::size_t expected) {
  return checked(links_.receive(from, Channel::kCollective, call), call, from, expected);
}

void Communicator::send(const Call &call, std::uint32_t to, Part part) {
  require_rank(call, to);
  links_.send(to, Channel::kPointToPoint, call, part.data, part.bytes);
}

Bytes Communicator::receive(const Call &call, std::uint32_t from, std::size_t expected) {
  require_rank(call, from);
  return checked(links_.receive(from, Channel::kPointToPoint, call), call, from, expected);
}

Bytes Communicator::checked(Message message, const Call &call, std::uint32_t from, std::size_t expected) const {
  require(message.call == call, HCCL_E_PARA, "rank ", rank_, " called ", describe(call), ", rank ", from, " ",
          describe(message.call));
  require(message.data.size() == expected, HCCL_E_PARA, "rank ", rank_, " called ", describe(call), " and expects ",
          expected, " bytes of rank ", from, ", which sent ", message.data.size());
  return std::move(message.data);
}

void Communicator::require_rank(const Call &call, std::uint32_t peer) const {
  require(peer < size_ && peer != rank_, HCCL_E_PARA, describe(call), ": rank ", peer, " is not another one of ",
          size_, " ranks");
}

HcclComm keep(std::shared_ptr<Communicator> communicator) {
  std::lock_guard<std::mutex> lock(table().mutex);
  HcclComm handle = communicator.get();
  table().communicators.emplace(handle, std::move(communicator));
  return handle;
}

std::shared_ptr<Communicator> find(HcclComm handle, const char *caller) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto found = table().communicators.find(handle);
  require(found != table().communicators.end(), HCCL_E_PTR, caller, ": not a communicator");
  return found->second;
}

void forget(HcclComm handle) {
  const auto last = find(handle, "HcclCommDestroy");  // closes its connections outside the lock
  std::lock_guard<std::mutex> lock(table().mutex);
  table().communicators.erase(handle);
}

}  // namespace host::hccl
