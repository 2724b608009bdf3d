#include "mhc/checks.h"

#include <algorithm>
#include <set>

#include "runtime/host.h"

namespace host {
namespace {

const std::set<aclFormat> kPrivateFormats = {ACL_FORMAT_NC1HWC0,   ACL_FORMAT_FRACTAL_Z, ACL_FORMAT_NC1HWC0_C04,
                                             ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_NDC1HWC0,  ACL_FRACTAL_Z_3D};

template <typename Numbers>
std::string alternatives(const Numbers &numbers) {
  std::string result;
  for (auto number : numbers) result += text(result.empty() ? "" : " or ", number);
  return result;
}

}  // namespace

bool is_x(const contract::Argument &argument) { return argument.dtype == "x"; }

std::vector<Call::Bound> Checker::of_role(const std::string &role) const {
  std::vector<Call::Bound> result;
  for (const Call::Bound &entry : call_.tensors()) {
    if (entry.tensor != nullptr && (role.empty() || entry.argument.role == role)) result.push_back(entry);
  }
  return result;
}

std::vector<Call::Bound> Checker::named(std::initializer_list<const char *> names) const {
  std::vector<Call::Bound> result;
  for (const char *name : names) {
    for (const Call::Bound &entry : call_.tensors()) {
      if (entry.argument.name == name && entry.tensor != nullptr) result.push_back(entry);
    }
  }
  return result;
}

void Checker::not_null() const {
  for (const Call::Bound &entry : call_.tensors()) {
    require(entry.tensor != nullptr || entry.argument.optional, kNullPointer, call_.where(entry.argument.name),
            " is null");
  }
}

void Checker::not_null(std::initializer_list<const char *> names) const {
  for (const char *name : names) require(call_.given(name), kNullPointer, call_.where(name), " is null");
}

void Checker::not_empty(const std::string &role) const {
  for (const Call::Bound &entry : of_role(role)) {
    require(!entry.tensor->empty(), kInvalid, call_.where(entry.argument.name), " is empty: ",
            entry.tensor->describe());
  }
}

// A soc without the kernel has the parameter checks all the same.
std::vector<std::size_t> Checker::token_dims() const {
  const auto found = call_.op().limits.find(soc_version());
  return found != call_.op().limits.end() ? found->second.token_dims : std::vector<std::size_t>{1, 2};
}

// The first tensor that shows T says how many dimensions it stands for; the others follow it.
void Checker::check_rank(const Call::Bound &entry) const {
  if (entry.has_other_shape) return;
  std::set<std::size_t> ranks{call_.rank(entry.argument)};
  const auto allowed = token_dims();
  const bool fits = std::count(allowed.begin(), allowed.end(), call_.tokens().size()) > 0;
  if (shows_tokens(entry.argument) && !fits) {
    ranks.clear();
    for (std::size_t count : allowed) ranks.insert(entry.argument.shape.size() - 1 + count);
  }
  require(ranks.count(entry.tensor->rank()) > 0, kInvalid, call_.where(entry.argument.name), " ",
          entry.tensor->describe(), " has rank ", entry.tensor->rank(), ", not ", alternatives(ranks));
}

void Checker::ranks(const std::string &role) const {
  for (const Call::Bound &entry : of_role(role)) check_rank(entry);
}

void Checker::ranks(std::initializer_list<const char *> names) const {
  for (const Call::Bound &entry : named(names)) check_rank(entry);
}

void Checker::check_shape(const Call::Bound &entry) const {
  if (entry.has_other_shape) return;
  const Shape wanted = call_.expected(entry.argument);
  require(entry.tensor->shape == wanted, kInvalid, call_.where(entry.argument.name), " has shape ",
          to_string(entry.tensor->shape), ", not ", to_string(wanted));
}

void Checker::shapes() const {
  for (const Call::Bound &entry : of_role("")) check_shape(entry);
}

void Checker::shapes(std::initializer_list<const char *> names) const {
  for (const Call::Bound &entry : named(names)) check_shape(entry);
}

void Checker::check_dtypes(const std::vector<Call::Bound> &entries) const {
  const Call::Bound *first = nullptr;  // the tensor whose dtype the others share
  for (const Call::Bound &entry : entries) {
    const aclDataType dtype = entry.tensor->dtype;
    const std::string where = call_.where(entry.argument.name);
    if (!is_x(entry.argument)) {
      require(dtype == ACL_FLOAT, kInvalid, where, " is ", dtype_name(dtype), ", not float32");
      continue;
    }
    require(dtype == ACL_BF16 || dtype == ACL_FLOAT16, kInvalid, where, " is ", dtype_name(dtype),
            ", not bfloat16 or float16");
    if (first == nullptr) first = &entry;
    require(dtype == first->tensor->dtype, kInvalid, where, " is ", dtype_name(dtype), ", not ",
            dtype_name(first->tensor->dtype), " as ", first->argument.name);
  }
}

void Checker::dtypes() const { check_dtypes(of_role("")); }

void Checker::dtypes(std::initializer_list<const char *> names) const { check_dtypes(named(names)); }

void Checker::check_formats(const std::vector<Call::Bound> &entries) const {
  for (const Call::Bound &entry : entries) {
    require(kPrivateFormats.count(entry.tensor->format) == 0, kInvalid, call_.where(entry.argument.name),
            " has a private format: ", static_cast<int>(entry.tensor->format));
  }
}

void Checker::public_formats(const std::string &role) const { check_formats(of_role(role)); }

void Checker::public_formats(std::initializer_list<const char *> names) const { check_formats(named(names)); }

bool Checker::any_input_empty() const {
  const auto inputs = of_role("input");
  return std::any_of(inputs.begin(), inputs.end(), [](const Call::Bound &entry) { return entry.tensor->empty(); });
}

void Checker::same_format(const char *one, const char *other) const {
  require(call_.tensor(one)->format == call_.tensor(other)->format, kInvalid, call_.where(one), " and ", other,
          " differ in format");
}

void Checker::all_or_none(std::initializer_list<const char *> names) const {
  const auto given = std::count_if(names.begin(), names.end(), [&](auto name) { return call_.given(name); });
  require(given == 0 || given == static_cast<std::ptrdiff_t>(names.size()), kInvalid, call_.op().name,
          ": the optional outputs must be given all or not at all");
}

void Checker::impl_mode() const {
  if (!call_.has("opImplMode")) return;
  const auto mode = call_.attr<std::int64_t>("opImplMode");
  require(mode == 0 || mode == 1, kInvalid, call_.where("opImplMode"), " is ", mode, ", not 0 or 1");
}

const contract::Limits &Checker::limits() const {
  const auto found = call_.op().limits.find(soc_version());
  require(found != call_.op().limits.end(), kNoKernel, call_.op().name, ": there is no kernel for ", soc_version());
  return found->second;
}

void Checker::streams_within(const std::vector<std::int64_t> &streams, aclnnStatus status) const {
  const bool fits = streams.empty() || std::count(streams.begin(), streams.end(), call_.size("N")) > 0;
  require(fits, status, call_.op().name, ": N is ", call_.size("N"), ", not one of ", to_string(streams), " on ",
          soc_version());
}

void Checker::hidden_multiple(std::int64_t multiple, aclnnStatus status) const {
  require(call_.size("D") % multiple == 0, status, call_.op().name, ": D is ", call_.size("D"), ", not a multiple of ",
          multiple, " as ", soc_version(), " needs");
}

void Checker::hidden_within(const contract::Limits &limits, aclnnStatus status) const {
  const std::int64_t d = call_.size("D");
  require(d >= limits.min_hidden, status, call_.op().name, ": D is ", d, ", below ", limits.min_hidden);
  require(d <= limits.max_hidden.value_or(d), status, call_.op().name, ": D is ", d, ", above ",
          limits.max_hidden.value_or(0), " on ", soc_version());
  const bool fits = limits.hidden.empty() || std::count(limits.hidden.begin(), limits.hidden.end(), d) > 0;
  require(fits, status, call_.op().name, ": D is ", d, ", not one of ", to_string(limits.hidden), " on ",
          soc_version());
}

void Checker::iterations_within(const contract::Limits &limits, std::int64_t iterations, aclnnStatus status) const {
  if (!limits.iterations) return;
  const auto [least, most] = *limits.iterations;
  require(iterations >= least && iterations <= most, status, call_.where("numIters"), " is ", iterations, ", not ",
          least == most ? text(least) : text(least, " to ", most));
}

}  // namespace host
