// The connections of one process to the other ranks of a communicator.
//
// They are unix sockets with names in Linux's abstract namespace: nothing lies in a file system, nothing is left behind
// by a process that dies, and its death is seen at once by the others. A thread takes in whatever arrives, so that a
// rank that sends never waits for the other one to ask.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hccl/call.h"

namespace host::hccl {

using Bytes = std::vector<std::byte>;

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int file = -1) : file_(file) {}
  ~Descriptor();
  Descriptor(Descriptor &&other) noexcept : file_(other.file_) { other.file_ = -1; }
  Descriptor &operator=(Descriptor &&other) noexcept;
  int get() const { return file_; }

 private:
  int file_;
};

// Point-to-point messages overtake collective ones: MindSpore puts them on streams of their own.
enum class Channel : std::uint32_t { kCollective, kPointToPoint };

struct Message {
  Call call;
  Bytes data;
};

class Links {
 public:
  // Connects all ranks that give the same name, or throws when one has not come after HCCL_CONNECT_TIMEOUT seconds.
  Links(const std::string &name, std::uint32_t rank, std::uint32_t size);
  ~Links();

  void send(std::uint32_t peer, Channel channel, const Call &call, const void *data, std::size_t bytes);

  // The next message of the peer. Throws when the peer has ended, or after HCCL_EXEC_TIMEOUT seconds.
  Message receive(std::uint32_t peer, Channel channel, const Call &call);

 private:
  struct Peer {
    Descriptor socket;
    std::mutex sending;
    std::deque<Message> queues[2];
    bool ended = false;
  };

  void connect_to(std::uint32_t peer, std::chrono::steady_clock::time_point deadline);
  void accept_from_higher(const Descriptor &listener, std::chrono::steady_clock::time_point deadline);
  void greet(std::uint32_t expected, Descriptor socket);
  void read_all();
  bool read_message(Peer *peer);

  const std::string name_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Descriptor stop_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::thread reader_;
};

}  // namespace host::hccl
