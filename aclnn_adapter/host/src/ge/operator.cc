#include "ge/operator.h"

namespace ge {
namespace {

std::map<std::string, OpCreator> &creators() {
  static auto *table = new std::map<std::string, OpCreator>;
  return *table;
}

template <typename T>
std::any plain(const T &value) {
  return value;
}
std::any plain(const char *value) { return std::string(value); }
std::any plain(const AscendString &value) { return std::string(value.GetString()); }
std::any plain(std::int32_t value) { return static_cast<std::int64_t>(value); }
std::any plain(std::uint32_t value) { return static_cast<std::int64_t>(value); }
std::any plain(const std::vector<std::int32_t> &values) {
  return std::vector<std::int64_t>(values.begin(), values.end());
}
std::any plain(const std::vector<AscendString> &values) {
  std::vector<std::string> texts;
  for (const AscendString &value : values) texts.emplace_back(value.GetString());
  return texts;
}

bool take(const std::any &kept, std::int32_t &value) {
  const auto *number = std::any_cast<std::int64_t>(&kept);
  if (number != nullptr) value = static_cast<std::int32_t>(*number);
  return number != nullptr;
}

bool take(const std::any &kept, std::vector<std::int32_t> &values) {
  const auto *numbers = std::any_cast<std::vector<std::int64_t>>(&kept);
  if (numbers != nullptr) values.assign(numbers->begin(), numbers->end());
  return numbers != nullptr;
}

template <typename T>
bool take(const std::any &kept, T &value) {
  const auto *found = std::any_cast<T>(&kept);
  if (found != nullptr) value = *found;
  return found != nullptr;
}

}  // namespace

AscendString::AscendString(const char *text) : text_(std::make_shared<std::string>(text == nullptr ? "" : text)) {}
const char *AscendString::GetString() const { return text_ == nullptr ? "" : text_->c_str(); }
std::size_t AscendString::Hash() const { return std::hash<std::string>()(GetString()); }
bool AscendString::operator<(const AscendString &other) const { return std::string(GetString()) < other.GetString(); }
bool AscendString::operator==(const AscendString &other) const { return std::string(GetString()) == other.GetString(); }

Operator::Operator(const std::string &name, const std::string &type)
    : impl_(std::make_shared<OperatorImpl>(OperatorImpl{name, type, {}})) {}
Operator::Operator(const std::string &type) : Operator(type, type) {}
Operator::Operator(const char *type) : Operator(std::string(type)) {}
Operator::Operator(const char *name, const char *type) : Operator(std::string(name), std::string(type)) {}
Operator::Operator(const AscendString &name, const AscendString &type) : Operator(name.GetString(), type.GetString()) {}

Operator &Operator::keep(const std::string &name, std::any value) {
  if (impl_ != nullptr) impl_->attributes[name] = std::move(value);
  return *this;
}

template <typename T>
graphStatus Operator::find(const std::string &name, T &value) const {
  if (impl_ == nullptr) return kGraphFailed;
  const auto found = impl_->attributes.find(name);
  return found != impl_->attributes.end() && take(found->second, value) ? kGraphSuccess : kGraphFailed;
}

#define GE_DEFINE(T) \
  Operator &Operator::SetAttr(const char *name, T value) { return keep(name, plain(value)); }
GE_SET_VALUES(GE_DEFINE)
#undef GE_DEFINE
#define GE_DEFINE(T) \
  Operator &Operator::SetAttr(const std::string &name, T value) { return keep(name, plain(value)); }
GE_SET_BY_STRING_VALUES(GE_DEFINE)
#undef GE_DEFINE
#define GE_DEFINE(T) \
  graphStatus Operator::GetAttr(const char *name, T &value) const { return find(name, value); }
GE_GET_VALUES(GE_DEFINE)
#undef GE_DEFINE
#define GE_DEFINE(T) \
  graphStatus Operator::GetAttr(const std::string &name, T &value) const { return find(name, value); }
GE_GET_BY_STRING_VALUES(GE_DEFINE)
#undef GE_DEFINE
#define GE_DEFINE(T) \
  void Operator::AttrRegister(const char *name, T value) { keep(name, plain(value)); }
GE_REGISTERED_VALUES(GE_DEFINE)
#undef GE_DEFINE

graphStatus Operator::GetName(AscendString &name) const {
  name = AscendString(impl_ == nullptr ? "" : impl_->name.c_str());
  return kGraphSuccess;
}

graphStatus Operator::GetOpType(AscendString &type) const {
  type = AscendString(impl_ == nullptr ? "" : impl_->type.c_str());
  return kGraphSuccess;
}

// A type that nobody registered still makes an operator, without attributes: whether it can run is not decided here.
Operator OperatorFactory::CreateOperator(const std::string &name, const std::string &type) {
  const auto found = creators().find(type);
  return found == creators().end() ? Operator(name, type) : found->second(name);
}

Operator OperatorFactory::CreateOperator(const char *name, const char *type) {
  return CreateOperator(std::string(name), std::string(type));
}

bool OperatorFactory::IsExistOp(const std::string &) { return true; }
bool OperatorFactory::IsExistOp(const char *) { return true; }

OperatorCreatorRegister::OperatorCreatorRegister(const std::string &type, const OpCreator &create) {
  creators()[type] = create;
}

OperatorCreatorRegister::OperatorCreatorRegister(const char *type, const OpCreatorV2 &create) {
  creators()[type] = [create](const std::string &name) { return create(AscendString(name.c_str())); };
}

}  // namespace ge
