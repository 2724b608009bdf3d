#include "mhc/checks.h"

#include <algorithm>
#include <set>

#include "runtime/host.h"

namespace host {
namespace {

const std::set<aclFormat> kPrivateFormats = {ACL_FORMAT_NC1HWC0,   ACL_FORMAT_FRACTAL_Z, ACL_FORMAT_NC1HWC0_C04,
                                             ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_NDC1HWC0,  ACL_FRACTAL_Z_3D};

bool begins_with_tokens(const contract::Argument &argument) {
  return !argument.shape.empty() && argument.shape[0].symbols == std::vector<std::string>{"T"} &&
         argument.shape[0].factor == 1;
}

const contract::Operator &in_contract(const char *name) {
  const contract::Operator *found = contract::find(name);
  require(found != nullptr, kInvalid, name, " is not in the contract");
  return *found;
}

}  // namespace

Checker::Checker(const char *name, std::initializer_list<const Tensor *> tensors) : operator_(in_contract(name)) {
  auto next = tensors.begin();
  for (const contract::Argument &argument : operator_.arguments) {
    if (argument.role != "attr") bound_.push_back({argument, *next++});
  }
}

std::vector<Checker::Bound> Checker::bound(const std::string &role) const {
  std::vector<Bound> result;
  for (const Bound &entry : bound_) {
    if (entry.tensor != nullptr && (role.empty() || entry.argument.role == role)) result.push_back(entry);
  }
  return result;
}

const Tensor *Checker::tensor(const std::string &name) const {
  for (const Bound &entry : bound_) {
    if (entry.argument.name == name) return entry.tensor;
  }
  throw std::logic_error(operator_.name + " has no tensor " + name);
}

void Checker::not_null() const {
  for (const Bound &entry : bound_) {
    require(entry.tensor != nullptr || entry.argument.optional, kNullPointer, where(entry.argument.name), " is null");
  }
}

void Checker::not_null(std::initializer_list<const char *> names) const {
  for (const char *name : names) require(tensor(name) != nullptr, kNullPointer, where(name), " is null");
}

void Checker::not_empty(const std::string &role) const {
  for (const Bound &entry : bound(role)) {
    require(!entry.tensor->empty(), kInvalid, where(entry.argument.name), " is empty: ", entry.tensor->describe());
  }
}

bool Checker::any_input_empty() const {
  const auto inputs = bound("input");
  return std::any_of(inputs.begin(), inputs.end(), [](const Bound &entry) { return entry.tensor->empty(); });
}

// Where a shape begins with T, x's rank says whether that is one dimension or two.
void Checker::ranks(const std::string &role) const {
  for (const Bound &entry : bound(role)) {
    const std::size_t rank = entry.argument.shape.size();
    const std::size_t more = begins_with_tokens(entry.argument) ? tokens().size() - 1 : 0;
    require(entry.tensor->rank() == rank + more, kInvalid, where(entry.argument.name), " ", entry.tensor->describe(),
            " has rank ", entry.tensor->rank(), ", not ", rank + more);
  }
}

// The token dimensions, from the first argument whose shape begins with T.
Shape Checker::tokens() const {
  for (const Bound &entry : bound_) {
    if (entry.tensor == nullptr || !begins_with_tokens(entry.argument)) continue;
    const std::size_t others = entry.argument.shape.size() - 1, rank = entry.tensor->rank();
    require(rank == others + 1 || rank == others + 2, kInvalid, where(entry.argument.name), " ",
            entry.tensor->describe(), " has rank ", rank, ", not ", others + 1, " or ", others + 2);
    return Shape(entry.tensor->shape.begin(), entry.tensor->shape.end() - static_cast<std::ptrdiff_t>(others));
  }
  throw std::logic_error(operator_.name + " has no token dimensions");
}

std::int64_t Checker::size(const std::string &symbol) const {
  if (auto found = known_.find(symbol); found != known_.end()) return found->second;
  if (symbol == "T") return element_count(tokens());
  if (symbol == "F") return size("N") * size("N") + 2 * size("N");
  for (const Bound &entry : bound_) {
    if (entry.tensor == nullptr) continue;
    const auto &dims = entry.argument.shape;
    const std::size_t more = begins_with_tokens(entry.argument) ? tokens().size() - 1 : 0;
    for (std::size_t i = 0; i < dims.size() && i + more < entry.tensor->rank(); ++i) {
      if (dims[i].factor == 1 && dims[i].symbols == std::vector<std::string>{symbol}) {
        return entry.tensor->shape[i + more];
      }
    }
  }
  throw std::logic_error(operator_.name + " shows no size " + symbol);
}

Shape Checker::expected(const contract::Argument &argument) const {
  Shape shape;
  for (std::size_t i = 0; i < argument.shape.size(); ++i) {
    if (i == 0 && begins_with_tokens(argument)) {
      shape = tokens();
      continue;
    }
    std::int64_t product = argument.shape[i].factor;
    for (const std::string &symbol : argument.shape[i].symbols) product *= size(symbol);
    shape.push_back(product);
  }
  return shape;
}

void Checker::shapes() const {
  for (const Bound &entry : bound("")) {
    const Shape wanted = expected(entry.argument);
    require(entry.tensor->shape == wanted, kInvalid, where(entry.argument.name), " has shape ",
            to_string(entry.tensor->shape), ", not ", to_string(wanted));
  }
}

void Checker::dtypes() const {
  const Tensor *first = nullptr;  // the tensor whose dtype the others share
  for (const Bound &entry : bound("")) {
    const aclDataType dtype = entry.tensor->dtype;
    if (entry.argument.dtype == "float32") {
      require(dtype == ACL_FLOAT, kInvalid, where(entry.argument.name), " is ", dtype_name(dtype), ", not float32");
      continue;
    }
    require(dtype == ACL_BF16 || dtype == ACL_FLOAT16, kInvalid, where(entry.argument.name), " is ", dtype_name(dtype),
            ", not bfloat16 or float16");
    if (first == nullptr) first = entry.tensor;
    require(dtype == first->dtype, kInvalid, where(entry.argument.name), " is ", dtype_name(dtype), ", not ",
            dtype_name(first->dtype), " as x");
  }
}

void Checker::formats(const std::string &role) const {
  for (const Bound &entry : bound(role)) {
    require(kPrivateFormats.count(entry.tensor->format) == 0, kInvalid, where(entry.argument.name),
            " has a private format: ", static_cast<int>(entry.tensor->format));
  }
}

void Checker::same_format(const char *one, const char *other) const {
  require(tensor(one)->format == tensor(other)->format, kInvalid, where(one), " and ", other, " differ in format");
}

void Checker::all_or_none(std::initializer_list<const char *> names) const {
  const auto given = std::count_if(names.begin(), names.end(), [&](auto name) { return tensor(name) != nullptr; });
  require(given == 0 || given == static_cast<std::ptrdiff_t>(names.size()), kInvalid, operator_.name,
          ": the optional outputs must be given all or not at all");
}

void Checker::impl_mode(std::int64_t mode) const {
  require(mode == 0 || mode == 1, kInvalid, where("opImplMode"), " is ", mode, ", not 0 or 1");
}

const contract::Limits &Checker::limits() const {
  const auto found = operator_.limits.find(soc_version());
  require(found != operator_.limits.end(), kNoKernel, operator_.name, ": there is no kernel for ", soc_version());
  return found->second;
}

void Checker::streams_within(const contract::Limits &limits, aclnnStatus status) const {
  if (limits.streams.empty()) return;
  const bool fits = std::count(limits.streams.begin(), limits.streams.end(), size("N")) > 0;
  require(fits, status, operator_.name, ": N is ", size("N"), ", not one of ", to_string(limits.streams), " on ",
          soc_version());
}

void Checker::hidden_multiple(const contract::Limits &limits, aclnnStatus status) const {
  require(size("D") % limits.hidden_multiple == 0, status, operator_.name, ": D is ", size("D"),
          ", not a multiple of ", limits.hidden_multiple, " as ", soc_version(), " needs");
}

void Checker::hidden_within(const contract::Limits &limits, aclnnStatus status) const {
  require(size("D") >= limits.min_hidden, status, operator_.name, ": D is ", size("D"), ", below ", limits.min_hidden);
  require(size("D") <= limits.max_hidden.value_or(size("D")), status, operator_.name, ": D is ", size("D"), ", above ",
          limits.max_hidden.value_or(0), " on ", soc_version());
}

mhc::Sizes Checker::sizes() const {
  const bool has_hidden = operator_.name.find("Sinkhorn") == std::string::npos;
  return {size("T"), size("N"), has_hidden ? size("D") : 0};
}

mhc::Element Checker::element() const {
  return bound_.front().tensor->dtype == ACL_BF16 ? mhc::Element::kBFloat16 : mhc::Element::kFloat16;
}

}  // namespace host
