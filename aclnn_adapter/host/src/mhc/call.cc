#include "mhc/call.h"

#include <algorithm>
#include <stdexcept>

#include "framework/status.h"
#include "mhc/checks.h"

namespace host {
namespace {

bool is_tokens(const contract::Dim &dim) {
  return dim.factor == 1 && dim.symbols.size() == 1 && dim.symbols[0] == "T";
}

// Where in a symbolic shape T stands alone.
std::optional<std::size_t> token_position(const contract::Argument &argument) {
  const auto found = std::find_if(argument.shape.begin(), argument.shape.end(), is_tokens);
  if (found == argument.shape.end()) return std::nullopt;
  return static_cast<std::size_t>(found - argument.shape.begin());
}

}  // namespace

bool shows_tokens(const contract::Argument &argument) { return token_position(argument).has_value(); }

Call::Call(const contract::Operator &op, const Executor &executor) : operator_(&op) {
  for (std::size_t i = 0; i < op.arguments.size(); ++i) {
    const contract::Argument &argument = op.arguments[i];
    const Argument::Value &value = executor.arguments().at(i)->value;
    if (auto *tensor = std::get_if<std::shared_ptr<Tensor>>(&value)) {
      tensors_.push_back({argument, tensor->get()});
    } else if (auto *real = std::get_if<double>(&value)) {
      numbers_[argument.name] = *real;
    } else if (auto *integer = std::get_if<std::int64_t>(&value)) {
      numbers_[argument.name] = *integer;
    } else {
      tensors_.push_back({argument, nullptr});
    }
  }
}

const Tensor *Call::tensor(const std::string &name) const {
  for (const Bound &entry : tensors_) {
    if (entry.argument.name == name) return entry.tensor;
  }
  throw std::logic_error(where(name) + " is not a tensor of this operator");
}

Call::Bound &Call::bound(const std::string &name) {
  for (Bound &entry : tensors_) {
    if (entry.argument.name == name) return entry;
  }
  throw std::logic_error(where(name) + " is not a tensor of this operator");
}

void Call::leave_out(const std::string &name) { bound(name).tensor = nullptr; }

void Call::accept_shape(const std::string &name) { bound(name).has_other_shape = true; }

const Call::Number &Call::number(const std::string &name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) throw std::logic_error(where(name) + " is not a number of this operator");
  return found->second;
}

Shape Call::tokens() const {
  for (const Bound &entry : tensors_) {
    const auto position = token_position(entry.argument);
    if (entry.tensor == nullptr || entry.has_other_shape || !position) continue;
    const std::size_t others = entry.argument.shape.size() - 1, rank = entry.tensor->rank();
    require(rank >= others, kInvalid, where(entry.argument.name), " ", entry.tensor->describe(), " has rank ", rank,
            ", not ", others + 1, " or ", others + 2);
    const auto first = entry.tensor->shape.begin() + static_cast<std::ptrdiff_t>(*position);
    return Shape(first, first + static_cast<std::ptrdiff_t>(rank - others));
  }
  throw std::logic_error(operator_->name + " has no token dimensions");
}

std::size_t Call::rank(const contract::Argument &argument) const {
  return argument.shape.size() + (token_position(argument) ? tokens().size() - 1 : 0);
}

std::optional<std::int64_t> Call::shown(const std::string &symbol) const {
  for (const Bound &entry : tensors_) {
    if (entry.tensor == nullptr || entry.has_other_shape || entry.tensor->rank() != rank(entry.argument)) continue;
    const auto &dims = entry.argument.shape;
    const auto position = token_position(entry.argument);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i].factor != 1 || dims[i].symbols != std::vector<std::string>{symbol}) continue;
      return entry.tensor->shape[position && i > *position ? i + tokens().size() - 1 : i];
    }
  }
  return std::nullopt;
}

std::int64_t Call::size(const std::string &symbol) const {
  if (const auto found = known_.find(symbol); found != known_.end()) return found->second;
  if (symbol == "T") return element_count(tokens());
  if (symbol == "F") return size("N") * size("N") + 2 * size("N");
  const auto value = shown(symbol);
  if (!value) throw std::logic_error(operator_->name + " shows no size " + symbol);
  return *value;
}

Shape Call::expected(const contract::Argument &argument) const {
  Shape shape;
  for (const contract::Dim &dim : argument.shape) {
    if (is_tokens(dim)) {
      const Shape all = tokens();
      shape.insert(shape.end(), all.begin(), all.end());
      continue;
    }
    std::int64_t product = dim.factor;
    for (const std::string &symbol : dim.symbols) product *= size(symbol);
    shape.push_back(product);
  }
  return shape;
}

mhc::Sizes Call::sizes() const { return {size("T"), size("N"), shown("D").value_or(0)}; }

mhc::Element Call::element() const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [](auto &entry) { return is_x(entry.argument); });
  return found->tensor->dtype == ACL_BF16 ? mhc::Element::kBFloat16 : mhc::Element::kFloat16;
}

Arrays::Arrays(const Call &call) {
  for (const Call::Bound &entry : call.tensors()) {
    void *address = nullptr;
    if (entry.argument.role == "output") {
      outputs_.push_back(std::make_unique<DenseOutput>(entry.tensor));
      address = outputs_.back()->get<void>();
    } else {
      inputs_.push_back(std::make_unique<DenseInput>(entry.tensor));
      address = const_cast<void *>(inputs_.back()->get<void>());
    }
    addresses_[entry.argument.name] = address;
  }
}

void Arrays::write() const {
  for (const auto &output : outputs_) output->write();
}

}  // namespace host
