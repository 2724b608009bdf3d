// Between the C interface and the code behind it: failures become codes, calls lines of the trace.
#pragma once

#include "hccl/abi.h"
#include "hccl/call.h"
#include "hccl/communicator.h"
#include "hccl/failure.h"
#include "runtime/host.h"

namespace host::hccl {

// Runs `body`; what it throws is reported and returned as a code.
template <typename Body>
HcclResult guarded(const char *caller, const Body &body) {
  try {
    body();
    return HCCL_SUCCESS;
  } catch (const Failure &failure) {
    report_error(text(caller, ": ", failure.what()));
    return failure.result();
  } catch (const std::exception &error) {
    report_error(text(caller, ": ", error.what()));
    return HCCL_E_INTERNAL;
  }
}

// One line of JSON for a call, if the program is traced.
void trace(const Communicator &communicator, const Call &call, const char *function, aclrtStream stream,
           std::uint32_t peer);

}  // namespace host::hccl
