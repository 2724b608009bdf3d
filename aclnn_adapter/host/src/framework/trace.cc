#include "framework/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "framework/contract.h"

namespace host {
namespace {

const contract::Argument *in_contract(const std::string &op, std::size_t index) {
  const contract::Operator *found = contract::find(op);
  return found != nullptr && index < found->arguments.size() ? &found->arguments[index] : nullptr;
}

std::string quoted(const std::string &value) {
  std::string result = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string number(double value) {
  if (!std::isfinite(value)) return quoted(std::to_string(value));
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.17g", value);
  return buffer;
}

template <typename Values>
std::string list(const Values &values) {
  std::string result = "[";
  for (auto value : values) result += (result.size() > 1 ? "," : "") + number(static_cast<double>(value));
  return result + "]";
}

std::string tensor_fields(const Tensor &tensor) {
  return text("\"dtype\":", quoted(dtype_name(tensor.dtype)), ",\"shape\":", to_string(tensor.shape),
              ",\"strides\":", to_string(tensor.strides), ",\"offset\":", tensor.offset);
}

struct Fields {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const std::shared_ptr<Tensor> &tensor) const { return "," + tensor_fields(*tensor); }
  std::string operator()(const std::shared_ptr<TensorList> &tensors) const {
    std::string entries;
    for (const auto &entry : tensors->tensors) entries += (entries.empty() ? "{" : ",{") + tensor_fields(*entry) + "}";
    return ",\"tensors\":[" + entries + "]";
  }
  std::string operator()(const std::shared_ptr<Scalar> &scalar) const {
    return text(",\"dtype\":", quoted(dtype_name(scalar->dtype)), ",\"value\":", number(scalar->as<double>()));
  }
  std::string operator()(const std::shared_ptr<ScalarList> &scalars) const {
    std::string values;
    for (const auto &entry : scalars->scalars) values += (values.empty() ? "" : ",") + number(entry->as<double>());
    return ",\"value\":[" + values + "]";
  }
  std::string operator()(const std::shared_ptr<std::string> &value) const { return ",\"value\":" + quoted(*value); }
  std::string operator()(double value) const { return ",\"value\":" + number(value); }
  std::string operator()(std::int64_t value) const { return ",\"value\":" + std::to_string(value); }
  template <typename Array>
  std::string operator()(const std::shared_ptr<Array> &array) const {
    return ",\"value\":" + list(array->values);
  }
};

std::string argument_json(const std::string &op, std::size_t index, const Argument &argument) {
  const contract::Argument *known = in_contract(op, index);
  bool is_tensor = argument.tensor_like();
  std::string role = known != nullptr ? known->role : !is_tensor ? "attr" : argument.output ? "output" : "input";
  return text("{\"name\":", quoted(argument_name(op, index)), ",\"role\":", quoted(role), ",\"c_type\":",
              quoted(argument.c_type), ",\"null\":", argument.null() ? "true" : "false",
              std::visit(Fields{}, argument.value), "}");
}

int trace_file() {
  static const int file = settings().trace_file.empty()
                            ? -1
                            : open(settings().trace_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return file;
}

}  // namespace

std::string argument_name(const std::string &op, std::size_t index) {
  const contract::Argument *known = in_contract(op, index);
  return known != nullptr ? known->name : "arg" + std::to_string(index);
}

void trace(const Call &call, const Executor &executor) {
  if (!traced()) return;
  std::string arguments;
  for (std::size_t i = 0; i < executor.arguments().size(); ++i) {
    arguments += (i > 0 ? "," : "") + argument_json(executor.name(), i, *executor.arguments()[i]);
  }
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  write_trace(
    text("{\"operator\":", quoted(executor.name()), ",\"phase\":", call.phase, ",\"status\":", call.status,
         ",\"executor\":", reinterpret_cast<std::uintptr_t>(call.executor), ",\"repeatable\":",
         executor.repeatable() ? "true" : "false", ",\"stream\":", reinterpret_cast<std::uintptr_t>(call.stream),
         ",\"workspace\":", call.workspace, ",\"time\":", number(now), ",\"microseconds\":",
         number(call.watch.microseconds()), ",\"device_bytes\":", live_device_bytes(), ",\"process\":", getpid(),
         ",\"arguments\":[", arguments, "]}\n"));
}

bool traced() { return trace_file() >= 0; }

void write_trace(const std::string &line) {
  // One write per line, so that threads and processes that share the file do not mix their lines.
  if (write(trace_file(), line.data(), line.size()) < 0) std::perror("[host CANN] trace");
}

}  // namespace host
