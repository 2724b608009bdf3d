// The part of the graph engine's operator registry that MindSpore's older operator path uses: an operator is created by
// its type's registered function and asked for the default values of its attributes. Names and layouts are the vendor's.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#define GE_API __attribute__((visibility("default")))

namespace ge {

using graphStatus = std::uint32_t;
inline constexpr graphStatus kGraphSuccess = 0;
inline constexpr graphStatus kGraphFailed = 0xFFFFFFFF;

enum DataType : int { DT_UNDEFINED = 28 };
class Tensor;

class GE_API AscendString {
 public:
  AscendString() = default;
  explicit AscendString(const char *text);
  const char *GetString() const;
  std::size_t Hash() const;
  bool operator<(const AscendString &other) const;
  bool operator==(const AscendString &other) const;

 private:
  std::shared_ptr<std::string> text_;
};

struct OperatorImpl {
  std::string name;
  std::string type;
  std::map<std::string, std::any> attributes;  // int and AscendString are kept as int64_t and std::string
};

// Calls F(type of the value) for the overloads of each member function.
#define GE_REGISTERED_VALUES(F)                                                                                    \
  F(const AscendString &) F(const DataType &) F(const std::vector<AscendString> &) F(const std::vector<DataType> &) \
  F(const std::vector<std::vector<std::int64_t>> &) F(const std::vector<bool> &) F(const std::vector<float> &)      \
  F(const std::vector<std::int64_t> &) F(bool) F(float) F(std::int64_t)
#define GE_SET_VALUES(F)                                                                                          \
  F(const DataType &) F(const std::vector<DataType> &) F(const std::vector<std::vector<std::int64_t>> &)           \
  F(const std::vector<float> &) F(const std::vector<std::int32_t> &) F(const std::vector<std::int64_t> &)          \
  F(const char *) F(bool) F(float) F(std::int32_t) F(std::uint32_t) F(std::int64_t)
#define GE_SET_BY_STRING_VALUES(F)                                                                                \
  F(const std::vector<std::string> &) F(const std::vector<bool> &) F(const std::vector<float> &)                   \
  F(const std::vector<std::int32_t> &) F(const std::vector<std::int64_t> &) F(const std::string &) F(bool)         \
  F(float) F(std::int32_t) F(std::int64_t)
#define GE_GET_VALUES(F)                                                                                          \
  F(DataType) F(std::vector<DataType>) F(std::vector<std::vector<std::int64_t>>) F(std::vector<float>)             \
  F(std::vector<std::int32_t>) F(std::vector<std::int64_t>) F(bool) F(float) F(std::int32_t) F(std::int64_t)
#define GE_GET_BY_STRING_VALUES(F) F(std::string) F(std::vector<std::string>) F(std::int32_t) F(std::int64_t)

class GE_API Operator {
 public:
  Operator() = default;
  explicit Operator(const std::string &type);
  explicit Operator(const char *type);
  Operator(const std::string &name, const std::string &type);
  Operator(const char *name, const char *type);
  Operator(const AscendString &name, const AscendString &type);
  virtual ~Operator() = default;

#define GE_DECLARE(T) Operator &SetAttr(const char *name, T value);
  GE_SET_VALUES(GE_DECLARE)
#undef GE_DECLARE
#define GE_DECLARE(T) Operator &SetAttr(const std::string &name, T value);
  GE_SET_BY_STRING_VALUES(GE_DECLARE)
#undef GE_DECLARE
#define GE_DECLARE(T) graphStatus GetAttr(const char *name, T &value) const;
  GE_GET_VALUES(GE_DECLARE)
#undef GE_DECLARE
#define GE_DECLARE(T) graphStatus GetAttr(const std::string &name, T &value) const;
  GE_GET_BY_STRING_VALUES(GE_DECLARE)
#undef GE_DECLARE
  graphStatus GetName(AscendString &name) const;
  graphStatus GetOpType(AscendString &type) const;

 protected:
#define GE_DECLARE(T) void AttrRegister(const char *name, T value);
  GE_REGISTERED_VALUES(GE_DECLARE)
#undef GE_DECLARE

 private:
  Operator &keep(const std::string &name, std::any value);
  template <typename T>
  graphStatus find(const std::string &name, T &value) const;

  std::shared_ptr<OperatorImpl> impl_;
};

using OpCreator = std::function<Operator(const std::string &)>;
using OpCreatorV2 = std::function<Operator(const AscendString &)>;

class GE_API OperatorFactory {
 public:
  static Operator CreateOperator(const std::string &name, const std::string &type);
  static Operator CreateOperator(const char *name, const char *type);
  static bool IsExistOp(const std::string &type);
  static bool IsExistOp(const char *type);
};

class GE_API OperatorCreatorRegister {
 public:
  OperatorCreatorRegister(const std::string &type, const OpCreator &create);
  OperatorCreatorRegister(const char *type, const OpCreatorV2 &create);
};

}  // namespace ge
