// The objects of the older operator interface (aclop), which MindSpore uses for operators without an aclnn form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/acl_abi.h"

extern "C" {

struct aclTensorDesc {
  aclDataType dtype;
  std::vector<std::int64_t> shape;
  aclFormat format;
  std::string name;
  bool on_host;
};

struct aclDataBuffer {
  void *data;
  std::size_t size;
};

// Attributes by name; all numbers are kept as lists of double.
struct aclopAttr {
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::string> texts;
};

}  // extern "C"
