#include "hccl/links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hccl/failure.h"

namespace host::hccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMagic = 0x4c43434854534f48;  // "HOSTHCCL"

struct Greeting {
  std::uint64_t magic;
  std::uint32_t rank;
  std::uint32_t size;
};

struct Header {
  std::uint64_t magic;
  Channel channel;
  Call call;
  std::uint64_t bytes;
};

long seconds_of(const char *variable, long otherwise) {
  const char *value = std::getenv(variable);
  const long seconds = value != nullptr ? std::atol(value) : 0;
  return seconds > 0 ? seconds : otherwise;
}

long connect_seconds() { return seconds_of("HCCL_CONNECT_TIMEOUT", 120); }
long wait_seconds() { return seconds_of("HCCL_EXEC_TIMEOUT", 300); }

[[noreturn]] void fail_in_system(const char *what) {
  throw Failure(HCCL_E_SYSCALL, text(what, ": ", std::strerror(errno)));
}

Descriptor make_socket() {
  Descriptor result(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (result.get() < 0) fail_in_system("socket");
  return result;
}

struct Address {
  sockaddr_un path{};
  socklen_t length;

  Address(const std::string &name, std::uint32_t rank) {
    const std::string full = name + "/" + std::to_string(rank);
    require(full.size() + 1 <= sizeof path.sun_path, HCCL_E_INTERNAL, "the name ", full, " is too long");
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path + 1, full.data(), full.size());  // a leading zero byte: the abstract namespace
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  }

  const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&path); }
};

void limit_waiting(int file, int option, long seconds) {
  const timeval limit{seconds, 0};
  if (setsockopt(file, SOL_SOCKET, option, &limit, sizeof limit) != 0) fail_in_system("setsockopt");
}

// False when the other side has closed.
bool read_exactly(int file, void *to, std::size_t bytes) {
  auto *next = static_cast<char *>(to);
  while (bytes > 0) {
    const ssize_t got = recv(file, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

enum class Sent { kAll, kPeerEnded, kTimeout };

Sent write_exactly(int file, const void *from, std::size_t bytes) {
  const auto *next = static_cast<const char *>(from);
  while (bytes > 0) {
    const ssize_t put = ::send(file, next, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::kTimeout : Sent::kPeerEnded;
    next += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return Sent::kAll;
}

}  // namespace

Descriptor::~Descriptor() {
  if (file_ >= 0) close(file_);
}

Descriptor &Descriptor::operator=(Descriptor &&other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

Links::Links(const std::string &name, std::uint32_t rank, std::uint32_t size)
    : name_(name), rank_(rank), size_(size), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_.get() < 0) fail_in_system("eventfd");
  for (std::uint32_t peer = 0; peer < size; ++peer) peers_.push_back(std::make_unique<Peer>());
  const auto deadline = Clock::now() + std::chrono::seconds(connect_seconds());
  const Descriptor listener = make_socket();
  const Address address(name, rank);
  if (bind(listener.get(), address.get(), address.length) != 0) {
    require(errno != EADDRINUSE, HCCL_E_PARA, "two processes are rank ", rank, " of the communicator ", name);
    fail_in_system("bind");
  }
  if (listen(listener.get(), static_cast<int>(size)) != 0) fail_in_system("listen");
  for (std::uint32_t peer = 0; peer < rank; ++peer) connect_to(peer, deadline);
  accept_from_higher(listener, deadline);
  reader_ = std::thread(&Links::read_all, this);
}

Links::~Links() {
  const std::uint64_t one = 1;
  if (reader_.joinable() && write(stop_.get(), &one, sizeof one) == sizeof one) reader_.join();
}

void Links::connect_to(std::uint32_t peer, Clock::time_point deadline) {
  const Address address(name_, peer);
  while (true) {
    Descriptor socket = make_socket();
    if (connect(socket.get(), address.get(), address.length) == 0) return greet(peer, std::move(socket));
    if (errno != ECONNREFUSED && errno != ENOENT && errno != EINTR && errno != EAGAIN) fail_in_system("connect");
    require(Clock::now() < deadline, HCCL_E_TIMEOUT, "rank ", rank_, " of ", size_, ": rank ", peer,
            " has not come after ", connect_seconds(), " seconds (HCCL_CONNECT_TIMEOUT)");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Links::accept_from_higher(const Descriptor &listener, Clock::time_point deadline) {
  for (std::uint32_t missing = size_ - rank_ - 1; missing > 0; --missing) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{listener.get(), POLLIN, 0};
    const int found = left > 0 ? poll(&ready, 1, static_cast<int>(left)) : 0;
    require(found > 0, HCCL_E_TIMEOUT, "rank ", rank_, " of ", size_, ": ", missing, " of the ranks above it have not ",
            "come after ", connect_seconds(), " seconds (HCCL_CONNECT_TIMEOUT)");
    Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) fail_in_system("accept");
    greet(size_, std::move(socket));
  }
}

// Both sides say who they are. `expected` is the peer's rank, or the size when any higher rank may come.
void Links::greet(std::uint32_t expected, Descriptor socket) {
  limit_waiting(socket.get(), SO_RCVTIMEO, connect_seconds());
  limit_waiting(socket.get(), SO_SNDTIMEO, wait_seconds());
  const Greeting mine{kMagic, rank_, size_};
  Greeting theirs{};
  const bool greeted = write_exactly(socket.get(), &mine, sizeof mine) == Sent::kAll &&
                       read_exactly(socket.get(), &theirs, sizeof theirs) && theirs.magic == kMagic;
  require(greeted, HCCL_E_REMOTE, "rank ", rank_, " of ", size_, ": a rank went away while it connected");
  require(theirs.size == size_, HCCL_E_PARA, "rank ", rank_, " has a communicator of ", size_, " ranks, rank ",
          theirs.rank, " one of ", theirs.size);
  const bool fits = expected == size_ ? theirs.rank > rank_ && theirs.rank < size_ : theirs.rank == expected;
  require(fits && peers_[theirs.rank]->socket.get() < 0, HCCL_E_PARA, "rank ", theirs.rank, " connected twice");
  limit_waiting(socket.get(), SO_RCVTIMEO, 0);  // the reader waits until something comes
  peers_[theirs.rank]->socket = std::move(socket);
}

void Links::send(std::uint32_t peer, Channel channel, const Call &call, const void *data, std::size_t bytes) {
  const Header header{kMagic, channel, call, bytes};
  Sent sent;
  {
    std::lock_guard<std::mutex> lock(peers_[peer]->sending);
    sent = write_exactly(peers_[peer]->socket.get(), &header, sizeof header);
    if (sent == Sent::kAll) sent = write_exactly(peers_[peer]->socket.get(), data, bytes);
  }
  require(sent != Sent::kPeerEnded, HCCL_E_REMOTE, "rank ", peer, " has ended; rank ", rank_, " called ",
          describe(call));
  require(sent != Sent::kTimeout, HCCL_E_TIMEOUT, "rank ", peer, " takes nothing any more; rank ", rank_, " called ",
          describe(call), " and gave up after ", wait_seconds(), " seconds (HCCL_EXEC_TIMEOUT)");
}

Message Links::receive(std::uint32_t peer, Channel channel, const Call &call) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer &from = *peers_[peer];
  auto &queue = from.queues[static_cast<std::size_t>(channel)];
  const auto something = [&] { return !queue.empty() || from.ended; };
  const bool came = arrived_.wait_for(lock, std::chrono::seconds(wait_seconds()), something);
  require(came, HCCL_E_TIMEOUT, "rank ", rank_, " called ", describe(call), " and has waited ", wait_seconds(),
          " seconds (HCCL_EXEC_TIMEOUT) for rank ", peer);
  require(!queue.empty(), HCCL_E_REMOTE, "rank ", peer, " has ended; rank ", rank_, " called ", describe(call),
          " and waits for it");
  Message message = std::move(queue.front());
  queue.pop_front();
  return message;
}

void Links::read_all() {
  std::vector<pollfd> files{{stop_.get(), POLLIN, 0}};
  std::vector<Peer *> owners{nullptr};
  for (const auto &peer : peers_) {
    if (peer->socket.get() < 0) continue;
    files.push_back({peer->socket.get(), POLLIN, 0});
    owners.push_back(peer.get());
  }
  while (true) {
    if (poll(files.data(), files.size(), -1) < 0) continue;  // a signal
    if (files[0].revents != 0) return;
    for (std::size_t i = 1; i < files.size(); ++i) {
      if (files[i].revents != 0 && !read_message(owners[i])) files[i].fd = -1;  // poll leaves it out from now on
    }
  }
}

bool Links::read_message(Peer *peer) {
  Header header{};
  Bytes data;
  bool complete = read_exactly(peer->socket.get(), &header, sizeof header) && header.magic == kMagic;
  if (complete) {
    data.resize(header.bytes);
    complete = read_exactly(peer->socket.get(), data.data(), data.size());
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (complete) {
      peer->queues[static_cast<std::size_t>(header.channel)].push_back({header.call, std::move(data)});
    } else {
      peer->ended = true;
    }
  }
  arrived_.notify_all();
  return complete;
}

}  // namespace host::hccl
