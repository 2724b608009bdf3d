#include <unistd.h>

#include "framework/trace.h"
#include "hccl/boundary.h"

namespace host::hccl {

void trace(const Communicator &communicator, const Call &call, const char *function, aclrtStream stream,
           std::uint32_t peer) {
  if (!traced()) return;
  write_trace(text("{\"operator\":\"", function, "\",\"phase\":2,\"status\":0,\"dtype\":\"", name(call.dtype),
                   "\",\"count\":", call.count, ",\"reduce\":\"", name(call.reduce), "\",\"peer\":", peer,
                   ",\"rank\":", communicator.rank(), ",\"ranks\":", communicator.size(), ",\"communicator\":\"",
                   communicator.name(), "\",\"stream\":", reinterpret_cast<std::uintptr_t>(stream),
                   ",\"process\":", getpid(), ",\"arguments\":[]}\n"));
}

}  // namespace host::hccl
