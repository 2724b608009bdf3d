// What MindSpore's headers need to know of the graph engine, in which an extension calls nothing: names, not layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ge {

using graphStatus = std::uint32_t;
using Status = std::uint32_t;

enum Format : int {};
enum DataType : int {
  DT_FLOAT, DT_FLOAT16, DT_BF16, DT_HIFLOAT8, DT_FLOAT8_E5M2,
  DT_FLOAT8_E4M3FN, DT_DOUBLE, DT_INT2, DT_INT4, DT_INT8, DT_INT16, DT_INT32,
  DT_INT64, DT_UINT1, DT_UINT2, DT_UINT8, DT_UINT16, DT_UINT32, DT_UINT64,
  DT_QINT8, DT_QINT16, DT_QINT32, DT_QUINT8, DT_QUINT16, DT_BOOL,
  DT_COMPLEX32, DT_COMPLEX64, DT_COMPLEX128, DT_DUAL, DT_DUAL_SUB_INT8,
  DT_DUAL_SUB_UINT8, DT_STRING, DT_STRING_REF, DT_RESOURCE, DT_VARIANT,
  DT_UNDEFINED,
};

class Shape {};
class Tensor {};
class TensorDesc {};
class GeTensor {};
class GeTensorDesc {};
class Graph {};
class Session {};
class Allocator;
using AllocatorPtr = std::shared_ptr<Allocator>;

class Operator {
 public:
  Operator();
  explicit Operator(const std::string &name);
  Operator(const std::string &name, const std::string &type);
  virtual ~Operator() = default;
  std::string GetName() const;

 protected:
  void InputRegister(const std::string &name);
  void OutputRegister(const std::string &name);
  void OptionalInputRegister(const std::string &name);
  void RequiredAttrRegister(const std::string &name);
  void InferFuncRegister(const std::function<graphStatus(Operator &)> &function);
};

class OperatorFactory {
 public:
  static Operator CreateOperator(const std::string &name, const std::string &type);
  static bool IsExistOp(const std::string &type);
};

}  // namespace ge
