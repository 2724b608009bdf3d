// One call of an mHC operator: its arguments by the contract's names, and the sizes that their shapes show.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "framework/contract.h"
#include "framework/dense.h"
#include "framework/executor.h"
#include "framework/objects.h"
#include "mhc.h"

namespace host {

// Whether T stands alone in the argument's shape.
bool shows_tokens(const contract::Argument &argument);

class Call {
 public:
  struct Bound {
    const contract::Argument &argument;
    const Tensor *tensor;  // null for a null pointer
    bool has_other_shape = false;
  };

  // The executor has taken the arguments, in order, and keeps them alive.
  Call(const contract::Operator &op, const Executor &executor);

  const contract::Operator &op() const { return *operator_; }
  std::string where(const std::string &argument) const { return operator_->name + ": " + argument; }

  const Tensor *tensor(const std::string &name) const;
  bool given(const std::string &name) const { return tensor(name) != nullptr; }
  const std::vector<Bound> &tensors() const { return tensors_; }
  void leave_out(const std::string &name);     // from now on the argument counts as null
  void accept_shape(const std::string &name);  // another shape than the contract's, checked by the operator itself

  bool has(const std::string &attribute) const { return numbers_.count(attribute) > 0; }
  template <typename Number>
  Number attr(const std::string &name) const {
    return std::visit([](auto value) { return static_cast<Number>(value); }, number(name));
  }

  // What T stands for, from the first tensor that shows it.
  Shape tokens() const;
  std::size_t rank(const contract::Argument &argument) const;
  Shape expected(const contract::Argument &argument) const;

  std::int64_t size(const std::string &symbol) const;
  void set_size(const std::string &symbol, std::int64_t value) { known_[symbol] = value; }
  mhc::Sizes sizes() const;
  mhc::Element element() const;

 private:
  using Number = std::variant<double, std::int64_t>;

  const Number &number(const std::string &name) const;
  std::optional<std::int64_t> shown(const std::string &symbol) const;
  Bound &bound(const std::string &name);

  const contract::Operator *operator_;
  std::vector<Bound> tensors_;
  std::map<std::string, Number> numbers_;
  std::map<std::string, std::int64_t> known_;
};

// The tensors of a call as dense arrays. Outputs reach their tensors by write().
class Arrays {
 public:
  // Converts to a pointer of any type.
  struct Pointer {
    void *address;
    template <typename T>
    operator T *() const {
      return static_cast<T *>(address);
    }
  };

  explicit Arrays(const Call &call);
  Pointer operator[](const std::string &name) const { return {addresses_.at(name)}; }  // null for a null tensor
  void write() const;

 private:
  std::vector<std::unique_ptr<DenseInput>> inputs_;
  std::vector<std::unique_ptr<DenseOutput>> outputs_;
  std::map<std::string, void *> addresses_;
};

}  // namespace host
