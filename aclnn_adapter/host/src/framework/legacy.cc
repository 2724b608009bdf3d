#include "framework/legacy.h"

#include <map>

#include "framework/executor.h"
#include "framework/trace.h"

namespace host {
namespace {

std::map<std::string, LegacyKernel> &kernels() {
  static auto *table = new std::map<std::string, LegacyKernel>;
  return *table;
}

Tensor as_tensor(const aclTensorDesc &desc, const aclDataBuffer &buffer, const std::string &op) {
  Tensor tensor;
  tensor.shape = desc.shape;
  tensor.strides = contiguous_strides(desc.shape);
  tensor.dtype = desc.dtype;
  tensor.format = desc.format;
  tensor.storage_shape = desc.shape;
  tensor.data = buffer.data;
  const auto bytes = static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype);
  require(bytes <= buffer.size, kInvalid, op, ": ", tensor.describe(), " does not fit in ", buffer.size, " bytes");
  return tensor;
}

std::string describe(const LegacyCall &call) {
  std::string result;
  for (const Tensor &input : call.inputs) result += " " + input.describe();
  result += " ->";
  for (const Tensor &output : call.outputs) result += " " + output.describe();
  for (const auto &[name, values] : call.attributes.numbers) {
    result += text(", ", name, "=");
    for (double value : values) result += text(value, " ");
  }
  for (const auto &[name, value] : call.attributes.texts) result += text(", ", name, "=", value);
  return result;
}

void run(const std::string &type, const LegacyCall &call) {
  const auto found = kernels().find(type);
  require(found != kernels().end(), kNoKernel, type, ": the host CANN has neither an aclnn entry point nor a kernel of ",
          "the older interface for this operator:", describe(call));
  found->second(call);
}

// The call in the shape in which the trace shows aclnn calls.
std::shared_ptr<Executor> shown(const std::string &type, const LegacyCall &call) {
  auto executor = std::make_shared<Executor>(type);
  for (const auto *tensors : {&call.inputs, &call.outputs}) {
    for (const Tensor &tensor : *tensors) {
      executor->add({"aclTensor*", tensors == &call.outputs, nullptr, std::make_shared<Tensor>(tensor)});
    }
  }
  return executor;
}

}  // namespace

double LegacyCall::real(const std::string &name, double otherwise) const {
  const auto found = attributes.numbers.find(name);
  return found == attributes.numbers.end() || found->second.empty() ? otherwise : found->second[0];
}

std::int64_t LegacyCall::number(const std::string &name, std::int64_t otherwise) const {
  return static_cast<std::int64_t>(real(name, static_cast<double>(otherwise)));
}

void serve(const char *type, LegacyKernel kernel) { kernels()[type] = kernel; }

}  // namespace host

using namespace host;

extern "C" {

HOST_API aclError aclopCompileAndExecuteV2(const char *type, int input_count, aclTensorDesc *input_descs[],
                                           aclDataBuffer *inputs[], int output_count, aclTensorDesc *output_descs[],
                                           aclDataBuffer *outputs[], aclopAttr *attributes, int, int, const char *,
                                           aclrtStream stream) {
  static const aclopAttr none;
  LegacyCall call{{}, {}, attributes != nullptr ? *attributes : none};
  const Stopwatch watch;
  aclnnStatus status = kOk;
  try {
    for (int i = 0; i < input_count; ++i) call.inputs.push_back(as_tensor(*input_descs[i], *inputs[i], type));
    for (int i = 0; i < output_count; ++i) call.outputs.push_back(as_tensor(*output_descs[i], *outputs[i], type));
    run(type, call);
  } catch (const Failure &failure) {
    report_error(failure.what());
    status = failure.status();
  }
  trace({2, status, nullptr, stream, 0, watch}, *shown(type, call));
  return status;
}

HOST_API aclError aclopCompileAndExecute(const char *type, int input_count, const aclTensorDesc *const input_descs[],
                                         const aclDataBuffer *const inputs[], int output_count,
                                         const aclTensorDesc *const output_descs[], aclDataBuffer *const outputs[],
                                         const aclopAttr *attributes, int engine, int compile, const char *path,
                                         aclrtStream stream) {
  return aclopCompileAndExecuteV2(type, input_count, const_cast<aclTensorDesc **>(input_descs),
                                  const_cast<aclDataBuffer **>(inputs), output_count,
                                  const_cast<aclTensorDesc **>(output_descs), const_cast<aclDataBuffer **>(outputs),
                                  const_cast<aclopAttr *>(attributes), engine, compile, path, stream);
}

}  // extern "C"
