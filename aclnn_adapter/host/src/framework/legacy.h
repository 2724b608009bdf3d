// Operators of the older interface (aclop): one function that computes at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "framework/objects.h"
#include "runtime/aclop.h"
#include "runtime/host.h"

namespace host {

struct HOST_API LegacyCall {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  const aclopAttr &attributes;

  const Tensor &input(std::size_t index) const { return inputs.at(index); }
  const Tensor &output(std::size_t index = 0) const { return outputs.at(index); }
  std::int64_t number(const std::string &name, std::int64_t otherwise) const;
  double real(const std::string &name, double otherwise) const;
};

using LegacyKernel = void (*)(const LegacyCall &call);

// Called while a library is loaded.
HOST_API void serve(const char *type, LegacyKernel kernel);

}  // namespace host
