// The checks of the mHC operators, driven by the contract. Each operator makes them in its vendor's order.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "framework/contract.h"
#include "framework/status.h"
#include "mhc/call.h"

namespace host {

// Whether the argument has the dtype of x.
bool is_x(const contract::Argument &argument);

class Checker {
 public:
  // The call may still change: what is left out of it is not checked.
  explicit Checker(const Call &call) : call_(call) {}

  // 161001 for those that are not optional, or only for the named ones.
  void not_null() const;
  void not_null(std::initializer_list<const char *> names) const;

  // 161002 each; tensors that are null are left out. An empty role stands for all tensors.
  void not_empty(const std::string &role) const;
  void ranks(const std::string &role) const;
  void ranks(std::initializer_list<const char *> names) const;
  void shapes() const;
  void shapes(std::initializer_list<const char *> names) const;
  void dtypes() const;
  void dtypes(std::initializer_list<const char *> names) const;
  void public_formats(const std::string &role) const;
  void public_formats(std::initializer_list<const char *> names) const;
  void same_format(const char *one, const char *other) const;
  void all_or_none(std::initializer_list<const char *> names) const;
  void impl_mode() const;

  bool any_input_empty() const;

  // 561003 for a soc without the kernel; the soc's limits otherwise.
  const contract::Limits &limits() const;
  void streams_within(const std::vector<std::int64_t> &streams, aclnnStatus status) const;
  void hidden_within(const contract::Limits &limits, aclnnStatus status) const;
  void hidden_multiple(std::int64_t multiple, aclnnStatus status) const;
  void iterations_within(const contract::Limits &limits, std::int64_t iterations, aclnnStatus status) const;

 private:
  std::vector<Call::Bound> of_role(const std::string &role) const;
  std::vector<Call::Bound> named(std::initializer_list<const char *> names) const;
  void check_rank(const Call::Bound &entry) const;
  void check_shape(const Call::Bound &entry) const;
  void check_dtypes(const std::vector<Call::Bound> &entries) const;
  void check_formats(const std::vector<Call::Bound> &entries) const;
  std::vector<std::size_t> token_dims() const;

  const Call &call_;
};

}  // namespace host
