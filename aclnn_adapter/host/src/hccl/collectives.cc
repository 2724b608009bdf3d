// The operations. Each runs at once in the thread that hands it over, as all work of the host CANN does.
//
// A reduction adds up in the order of the ranks, whichever data came first, so that its result is always the same.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "hccl/boundary.h"
#include "hccl/reduce.h"

namespace {

using host::hccl::Bytes;
using host::hccl::Call;
using host::hccl::Communicator;
using host::hccl::Operation;
using host::hccl::Part;
using host::hccl::require;
using host::hccl::size_of;
using Counts = const std::uint64_t *;

const char *at(const void *base, std::size_t bytes) { return static_cast<const char *>(base) + bytes; }
char *at(void *base, std::size_t bytes) { return static_cast<char *>(base) + bytes; }

void require_device(const void *address, std::size_t bytes, const char *what) {
  require(bytes == 0 || host::is_device_memory(address, bytes), HCCL_E_PTR, what, " is not ", bytes,
          " bytes of device memory");
}

// Checks, runs and traces one collective; `body` gets the communicator.
template <typename Body>
HcclResult collective(const Call &call, HcclComm handle, aclrtStream stream, const Body &body) {
  const char *function = host::hccl::name(call.operation);
  return host::hccl::guarded(function, [&] {
    const auto communicator = host::hccl::find(handle, function);
    require(call.root < communicator->size(), HCCL_E_PARA, describe(call), ": there are ", communicator->size(),
            " ranks");
    const std::lock_guard<std::mutex> lock(communicator->order());
    body(*communicator);
    host::hccl::trace(*communicator, call, function, stream, call.root);
  });
}

std::vector<Part> same_for_all(const Communicator &group, Part part) { return std::vector<Part>(group.size(), part); }

std::vector<const void *> in_order(const std::vector<Bytes> &arrived, std::uint32_t rank, const void *own) {
  std::vector<const void *> parts;
  for (std::uint32_t peer = 0; peer < arrived.size(); ++peer) {
    parts.push_back(peer == rank ? own : arrived[peer].data());
  }
  return parts;
}

// Rank r gets the r-th share of everybody's data and combines it. `counts` and `starts` are in elements.
Bytes reduce_own_share(Communicator &group, const Call &call, const void *data, const std::vector<std::size_t> &starts,
                       const std::vector<std::size_t> &counts) {
  const std::size_t unit = size_of(call.dtype), rank = group.rank();
  std::vector<Part> parts;
  for (std::size_t peer = 0; peer < group.size(); ++peer) {
    parts.push_back({at(data, starts[peer] * unit), counts[peer] * unit});
  }
  const std::vector<std::size_t> expected(group.size(), counts[rank] * unit);
  const auto arrived = group.exchange(call, parts, expected);
  Bytes share(counts[rank] * unit);
  host::hccl::reduce(in_order(arrived, group.rank(), parts[rank].data), counts[rank], call.dtype, call.reduce,
                     share.data());
  return share;
}

// Everybody's share to everybody.
void gather(Communicator &group, const Call &call, Part own, void *out, const std::vector<std::size_t> &starts,
            const std::vector<std::size_t> &bytes) {
  const auto arrived = group.exchange(call, same_for_all(group, own), bytes);
  std::memmove(at(out, starts[group.rank()]), own.data, own.bytes);
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    std::memcpy(at(out, starts[peer]), arrived[peer].data(), arrived[peer].size());
  }
}

struct Shares {
  std::vector<std::size_t> starts;
  std::vector<std::size_t> counts;

  Shares times(std::size_t unit) const {
    Shares result = *this;
    for (auto &start : result.starts) start *= unit;
    for (auto &count : result.counts) count *= unit;
    return result;
  }
};

// As equal as whole elements allow.
Shares divide(std::size_t count, std::size_t ranks) {
  Shares shares;
  for (std::size_t r = 0; r < ranks; ++r) {
    shares.starts.push_back(count * r / ranks);
    shares.counts.push_back(count * (r + 1) / ranks - shares.starts.back());
  }
  return shares;
}

Shares equal(std::size_t count, std::size_t ranks) { return divide(count * ranks, ranks); }

Shares given(Counts counts, Counts starts, std::size_t ranks) {
  return {std::vector<std::size_t>(starts, starts + ranks), std::vector<std::size_t>(counts, counts + ranks)};
}

std::size_t extent(const Shares &shares) {
  std::size_t end = 0;
  for (std::size_t r = 0; r < shares.starts.size(); ++r) {
    if (shares.counts[r] > 0) end = std::max(end, shares.starts[r] + shares.counts[r]);
  }
  return end;
}

void all_to_all(Communicator &group, const Call &call, const void *send, const Shares &sent, void *receive,
                const Shares &received) {
  require_device(send, extent(sent), "sendBuf");
  require_device(receive, extent(received), "recvBuf");
  std::vector<Part> parts;
  for (std::size_t peer = 0; peer < group.size(); ++peer) {
    parts.push_back({at(send, sent.starts[peer]), sent.counts[peer]});
  }
  const auto arrived = group.exchange(call, parts, received.counts);
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    const void *from = peer == group.rank() ? parts[peer].data : arrived[peer].data();
    std::memmove(at(receive, received.starts[peer]), from, received.counts[peer]);
  }
}

}  // namespace

extern "C" {

HOST_API HcclResult HcclAllReduce(void *send, void *receive, std::uint64_t count, HcclDataType dtype, HcclReduceOp op,
                                  HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kAllReduce, dtype, count, op};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t unit = size_of(dtype);
    require_device(send, count * unit, "sendBuf");
    require_device(receive, count * unit, "recvBuf");
    const Shares shares = divide(count, group.size()), bytes = shares.times(unit);
    const Bytes share = reduce_own_share(group, call, send, shares.starts, shares.counts);
    gather(group, call, {share.data(), share.size()}, receive, bytes.starts, bytes.counts);
  });
}

HOST_API HcclResult HcclReduce(void *send, void *receive, std::uint64_t count, HcclDataType dtype, HcclReduceOp op,
                               std::uint32_t root, HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kReduce, dtype, count, op, root};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t bytes = count * size_of(dtype);
    require_device(send, bytes, "sendBuf");
    if (group.rank() != root) return group.give(call, root, {send, bytes});
    require_device(receive, bytes, "recvBuf");
    std::vector<Bytes> arrived(group.size());
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      if (peer != root) arrived[peer] = group.take(call, peer, bytes);
    }
    host::hccl::reduce(in_order(arrived, root, send), count, dtype, op, receive);
  });
}

HOST_API HcclResult HcclReduceScatter(void *send, void *receive, std::uint64_t count, HcclDataType dtype,
                                      HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kReduceScatter, dtype, count, op};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t unit = size_of(dtype);
    require_device(send, group.size() * count * unit, "sendBuf");
    require_device(receive, count * unit, "recvBuf");
    const Shares shares = equal(count, group.size());
    const Bytes share = reduce_own_share(group, call, send, shares.starts, shares.counts);
    std::memcpy(receive, share.data(), share.size());
  });
}

HOST_API HcclResult HcclReduceScatterV(void *send, const void *counts, const void *starts, void *receive,
                                       std::uint64_t count, HcclDataType dtype, HcclReduceOp op, HcclComm comm,
                                       aclrtStream stream) {
  const Call call{Operation::kReduceScatterV, dtype, 0, op};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t unit = size_of(dtype);
    const Shares shares = given(static_cast<Counts>(counts), static_cast<Counts>(starts), group.size());
    require(shares.counts[group.rank()] == count, HCCL_E_PARA, "recvCount is ", count, ", sendCounts has ",
            shares.counts[group.rank()], " for this rank");
    require_device(send, extent(shares) * unit, "sendBuf");
    require_device(receive, count * unit, "recvBuf");
    const Bytes share = reduce_own_share(group, call, send, shares.starts, shares.counts);
    std::memcpy(receive, share.data(), share.size());
  });
}

HOST_API HcclResult HcclAllGather(void *send, void *receive, std::uint64_t count, HcclDataType dtype, HcclComm comm,
                                  aclrtStream stream) {
  const Call call{Operation::kAllGather, dtype, count};
  return collective(call, comm, stream, [&](Communicator &group) {
    const Shares bytes = equal(count * size_of(dtype), group.size());
    const Part own{send, bytes.counts[0]};
    require_device(send, own.bytes, "sendBuf");
    require_device(receive, extent(bytes), "recvBuf");
    gather(group, call, own, receive, bytes.starts, bytes.counts);
  });
}

HOST_API HcclResult HcclAllGatherV(void *send, std::uint64_t count, void *receive, const void *counts,
                                   const void *starts, HcclDataType dtype, HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kAllGatherV, dtype};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t unit = size_of(dtype);
    const Shares shares = given(static_cast<Counts>(counts), static_cast<Counts>(starts), group.size());
    require(shares.counts[group.rank()] == count, HCCL_E_PARA, "sendCount is ", count, ", recvCounts has ",
            shares.counts[group.rank()], " for this rank");
    const Shares bytes = shares.times(unit);
    require_device(send, count * unit, "sendBuf");
    require_device(receive, extent(bytes), "recvBuf");
    gather(group, call, {send, count * unit}, receive, bytes.starts, bytes.counts);
  });
}

HOST_API HcclResult HcclBroadcast(void *data, std::uint64_t count, HcclDataType dtype, std::uint32_t root,
                                  HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kBroadcast, dtype, count, HCCL_REDUCE_SUM, root};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t bytes = count * size_of(dtype);
    require_device(data, bytes, "buf");
    if (group.rank() != root) {
      std::memcpy(data, group.take(call, root, bytes).data(), bytes);
      return;
    }
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      if (peer != root) group.give(call, peer, {data, bytes});
    }
  });
}

HOST_API HcclResult HcclScatter(void *send, void *receive, std::uint64_t count, HcclDataType dtype, std::uint32_t root,
                                HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kScatter, dtype, count, HCCL_REDUCE_SUM, root};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t bytes = count * size_of(dtype);
    require_device(receive, bytes, "recvBuf");
    if (group.rank() != root) {
      std::memcpy(receive, group.take(call, root, bytes).data(), bytes);
      return;
    }
    require_device(send, bytes * group.size(), "sendBuf");
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      if (peer != root) group.give(call, peer, {at(send, peer * bytes), bytes});
    }
    std::memmove(receive, at(send, root * bytes), bytes);
  });
}

HOST_API HcclResult HcclAlltoAll(const void *send, std::uint64_t send_count, HcclDataType send_type, void *receive,
                                 std::uint64_t receive_count, HcclDataType receive_type, HcclComm comm,
                                 aclrtStream stream) {
  const Call call{Operation::kAllToAll, send_type, send_count};
  return collective(call, comm, stream, [&](Communicator &group) {
    const Shares sent = equal(send_count * size_of(send_type), group.size());
    all_to_all(group, call, send, sent, receive, equal(receive_count * size_of(receive_type), group.size()));
  });
}

HOST_API HcclResult HcclAlltoAllV(const void *send, const void *send_counts, const void *send_starts,
                                  HcclDataType send_type, void *receive, const void *receive_counts,
                                  const void *receive_starts, HcclDataType receive_type, HcclComm comm,
                                  aclrtStream stream) {
  const Call call{Operation::kAllToAllV, send_type};
  return collective(call, comm, stream, [&](Communicator &group) {
    const auto shares = [&](const void *counts, const void *starts, HcclDataType type) {
      return given(static_cast<Counts>(counts), static_cast<Counts>(starts), group.size()).times(size_of(type));
    };
    all_to_all(group, call, send, shares(send_counts, send_starts, send_type), receive,
               shares(receive_counts, receive_starts, receive_type));
  });
}

// `matrix[i][j]` elements go from rank i to rank j, one after the other in both buffers.
HOST_API HcclResult HcclAlltoAllVC(const void *send, const void *matrix, HcclDataType send_type, void *receive,
                                   HcclDataType receive_type, HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kAllToAllVC, send_type};
  return collective(call, comm, stream, [&](Communicator &group) {
    const std::size_t ranks = group.size(), own = group.rank();
    const auto counts = static_cast<Counts>(matrix);
    Shares sent, received;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      sent.starts.push_back(peer == 0 ? 0 : sent.starts.back() + sent.counts.back());
      sent.counts.push_back(counts[own * ranks + peer]);
      received.starts.push_back(peer == 0 ? 0 : received.starts.back() + received.counts.back());
      received.counts.push_back(counts[peer * ranks + own]);
    }
    all_to_all(group, call, send, sent.times(size_of(send_type)), receive, received.times(size_of(receive_type)));
  });
}

HOST_API HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  const Call call{Operation::kBarrier};
  return collective(call, comm, stream, [&](Communicator &group) {
    group.exchange(call, same_for_all(group, {}), std::vector<std::size_t>(group.size(), 0));
  });
}

HOST_API HcclResult HcclSend(void *data, std::uint64_t count, HcclDataType dtype, std::uint32_t to, HcclComm comm,
                             aclrtStream stream) {
  return host::hccl::guarded("HcclSend", [&] {
    const Call call{Operation::kPointToPoint, dtype, count};
    const auto group = host::hccl::find(comm, "HcclSend");
    const std::size_t bytes = count * size_of(dtype);
    require_device(data, bytes, "sendBuf");
    group->send(call, to, {data, bytes});
    host::hccl::trace(*group, call, "HcclSend", stream, to);
  });
}

HOST_API HcclResult HcclRecv(void *data, std::uint64_t count, HcclDataType dtype, std::uint32_t from, HcclComm comm,
                             aclrtStream stream) {
  return host::hccl::guarded("HcclRecv", [&] {
    const Call call{Operation::kPointToPoint, dtype, count};
    const auto group = host::hccl::find(comm, "HcclRecv");
    const std::size_t bytes = count * size_of(dtype);
    require_device(data, bytes, "recvBuf");
    const Bytes arrived = group->receive(call, from, bytes);
    std::memcpy(data, arrived.data(), bytes);
    host::hccl::trace(*group, call, "HcclRecv", stream, from);
  });
}

// All are sent before the first is received: two ranks may swap.
HOST_API HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, std::uint32_t count, HcclComm comm,
                                      aclrtStream stream) {
  for (const HcclSendRecvType now : {HCCL_SEND, HCCL_RECV}) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const HcclSendRecvItem &item = items[i];
      if (item.sendRecvType != now) continue;
      const auto run = now == HCCL_SEND ? HcclSend : HcclRecv;
      const HcclResult result = run(item.buf, item.count, item.dataType, item.remoteRank, comm, stream);
      if (result != HCCL_SUCCESS) return result;
    }
  }
  return HCCL_SUCCESS;
}

}  // extern "C"
