// A group of ranks that communicate, and the table of those that this process belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hccl/abi.h"
#include "hccl/call.h"
#include "hccl/links.h"

namespace host::hccl {

// What goes to one rank. `data` is not owned.
struct Part {
  const void *data = nullptr;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  Communicator(std::string name, std::uint32_t rank, std::uint32_t size);

  const std::string &name() const { return name_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }

  // Every rank gives each other rank a part and takes one from it. What came stands at the sender's place; one's own
  // place stays empty. `expected` holds the bytes that have to come.
  std::vector<Bytes> exchange(const Call &call, const std::vector<Part> &parts,
                              const std::vector<std::size_t> &expected);

  // One direction only, for collectives with a root.
  void give(const Call &call, std::uint32_t to, Part part);
  Bytes take(const Call &call, std::uint32_t from, std::size_t expected);

  // Outside the order of the collectives.
  void send(const Call &call, std::uint32_t to, Part part);
  Bytes receive(const Call &call, std::uint32_t from, std::size_t expected);

  // Held during a collective, so that two threads' collectives do not mix.
  std::mutex &order() { return order_; }

 private:
  Bytes checked(Message message, const Call &call, std::uint32_t from, std::size_t expected) const;
  void require_rank(const Call &call, std::uint32_t peer) const;

  const std::string name_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  Links links_;
  std::mutex order_;
};

HcclComm keep(std::shared_ptr<Communicator> communicator);

// Throws when there is no such communicator.
std::shared_ptr<Communicator> find(HcclComm handle, const char *caller);

void forget(HcclComm handle);

}  // namespace host::hccl
