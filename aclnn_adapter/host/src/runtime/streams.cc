// Streams and events. Work runs at once, in the thread that hands it over: what CANN calls asynchronous is then done
// when the call returns, which is one of the orders that a device may choose.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "runtime/acl_abi.h"
#include "runtime/handles.h"
#include "runtime/host.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point recorded = Clock::now();
};

using Events = host::Handles<Event, void>;

Events &events() { return host::immortal<Events>(host::Kind::kEvent); }

std::shared_ptr<Event> living(const void *handle, const char *caller) {
  auto event = events().find(handle);
  if (event == nullptr) {
    const char *why = events().known(handle) ? ": the event was destroyed" : ": not an event";
    host::report_error(std::string(caller) + why);
  }
  return event;
}

// A stream and a context carry no state: any address that is not null and never freed will do.
void *token() {
  static char storage[1];
  return storage;
}

void *next_stream() {
  static std::atomic<std::uintptr_t> serial{0x1000};
  return reinterpret_cast<void *>(serial += 16);
}

}  // namespace

extern "C" {

HOST_API aclError aclrtCreateStream(aclrtStream *stream) {
  *stream = next_stream();
  return host::kSuccess;
}

HOST_API aclError aclrtCreateStreamWithConfig(aclrtStream *stream, std::uint32_t, std::uint32_t) {
  return aclrtCreateStream(stream);
}

HOST_API aclError aclrtStreamQuery(aclrtStream, int *status) {
  *status = 0;  // ACL_STREAM_STATUS_COMPLETE
  return host::kSuccess;
}

HOST_API aclError aclrtLaunchCallback(void (*function)(void *), void *data, int, aclrtStream) {
  function(data);
  return host::kSuccess;
}

HOST_API aclError aclrtProcessReport(std::int32_t timeout) {
  // MindSpore's callback thread asks in a loop; there is never a report, so let it wait.
  std::this_thread::sleep_for(std::chrono::milliseconds(timeout > 0 && timeout < 100 ? timeout : 100));
  return host::kReportTimeout;
}

HOST_API aclError aclrtCreateEventWithFlag(aclrtEvent *event, std::uint32_t) {
  *event = events().insert(std::make_shared<Event>());
  return host::kSuccess;
}

HOST_API aclError aclrtCreateEventExWithFlag(aclrtEvent *event, std::uint32_t flag) {
  return aclrtCreateEventWithFlag(event, flag);
}

HOST_API aclError aclrtDestroyEvent(aclrtEvent event) {
  if (living(event, "aclrtDestroyEvent") == nullptr) return host::kInvalidParameter;
  events().remove(event);
  return host::kSuccess;
}

HOST_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) {
  auto found = living(event, "aclrtRecordEvent");
  if (found == nullptr) return host::kInvalidParameter;
  found->recorded = Clock::now();
  return host::kSuccess;
}

HOST_API aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent event) {
  return living(event, "aclrtStreamWaitEvent") != nullptr ? host::kSuccess : host::kInvalidParameter;
}

HOST_API aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return living(event, "aclrtSynchronizeEvent") != nullptr ? host::kSuccess : host::kInvalidParameter;
}

HOST_API aclError aclrtQueryEventStatus(aclrtEvent event, int *status) {
  *status = 1;  // ACL_EVENT_RECORDED_STATUS_COMPLETE
  return living(event, "aclrtQueryEventStatus") != nullptr ? host::kSuccess : host::kInvalidParameter;
}

HOST_API aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent start, aclrtEvent end) {
  auto from = living(start, "aclrtEventElapsedTime");
  auto to = living(end, "aclrtEventElapsedTime");
  if (from == nullptr || to == nullptr) return host::kInvalidParameter;
  *milliseconds = std::chrono::duration<float, std::milli>(to->recorded - from->recorded).count();
  return host::kSuccess;
}

HOST_API aclError aclrtEventGetTimestamp(aclrtEvent event, std::uint64_t *microseconds) {
  auto found = living(event, "aclrtEventGetTimestamp");
  if (found == nullptr) return host::kInvalidParameter;
  auto since = std::chrono::duration_cast<std::chrono::microseconds>(found->recorded.time_since_epoch());
  *microseconds = static_cast<std::uint64_t>(since.count());
  return host::kSuccess;
}

HOST_API aclError aclrtCreateContext(aclrtContext *context, std::int32_t) {
  *context = token();
  return host::kSuccess;
}

HOST_API aclError aclrtGetCurrentContext(aclrtContext *context) {
  *context = token();
  return host::kSuccess;
}

}  // extern "C"
