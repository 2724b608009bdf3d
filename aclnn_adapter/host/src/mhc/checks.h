// The checks of the mHC operators, driven by the contract. Each operator calls them in its vendor's order.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "framework/contract.h"
#include "framework/objects.h"
#include "framework/status.h"
#include "mhc.h"

namespace host {

// The tensors of one call beside the contract's description of them.
class Checker {
 public:
  struct Bound {
    const contract::Argument &argument;
    const Tensor *tensor;
  };

  // `tensors` are those of the prototype, in order.
  Checker(const char *name, std::initializer_list<const Tensor *> tensors);

  // 161001 for those that are not optional, or only for the named ones.
  void not_null() const;
  void not_null(std::initializer_list<const char *> names) const;

  // 161002 each; tensors that are null are left out.
  void not_empty(const std::string &role) const;
  void ranks(const std::string &role) const;
  void shapes() const;
  void dtypes() const;
  void formats(const std::string &role) const;
  void same_format(const char *one, const char *other) const;
  void all_or_none(std::initializer_list<const char *> names) const;
  void impl_mode(std::int64_t mode) const;

  // 561003 for a soc without the kernel; the soc's limits otherwise.
  const contract::Limits &limits() const;
  void streams_within(const contract::Limits &limits, aclnnStatus status) const;
  void hidden_within(const contract::Limits &limits, aclnnStatus status) const;
  void hidden_multiple(const contract::Limits &limits, aclnnStatus status) const;

  // The size of a symbol as the shapes show it.
  std::int64_t size(const std::string &symbol) const;
  void set_size(const std::string &symbol, std::int64_t value) { known_[symbol] = value; }
  mhc::Sizes sizes() const;
  mhc::Element element() const;

  const Tensor *tensor(const std::string &name) const;
  bool any_input_empty() const;
  std::string where(const std::string &argument) const { return operator_.name + ": " + argument; }
  const std::string &name() const { return operator_.name; }

 private:
  std::vector<Bound> bound(const std::string &role) const;
  Shape expected(const contract::Argument &argument) const;
  Shape tokens() const;

  const contract::Operator &operator_;
  std::vector<Bound> bound_;
  std::map<std::string, std::int64_t> known_;
};

}  // namespace host
