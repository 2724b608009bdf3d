// The contract of the mHC operators, as aclnn_adapter/operators.py states it; contract_table.cc is generated from there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/host.h"

namespace host::contract {

// One dimension: the product of a number and of symbols such as N and D. "T" alone stands for all token dimensions.
struct Dim {
  std::int64_t factor;
  std::vector<std::string> symbols;
};

struct Argument {
  std::string name;
  std::string role;    // input, attr or output
  std::string c_type;  // without const
  std::string dtype;   // "x" is the dtype of x; empty for attributes
  std::vector<Dim> shape;
  bool optional;
};

struct Limits {
  std::vector<std::int64_t> streams;  // empty: any
  std::int64_t min_hidden;
  std::optional<std::int64_t> max_hidden;
  std::int64_t hidden_multiple;
  std::vector<std::int64_t> hidden;  // empty: any
  std::optional<std::pair<std::int64_t, std::int64_t>> iterations;
  std::vector<std::size_t> token_dims;  // how many dimensions T may stand for
  std::vector<bool> hf32;               // for each opImplMode, whether products with phi are HF32
};

struct Operator {
  std::string name;
  std::vector<Argument> arguments;
  std::map<std::string, Limits> limits;  // by soc version; a soc that is not there has no kernel

  const Argument &argument(const std::string &argument_name) const;
};

// Null for an operator that is not in the contract.
HOST_API const Operator *find(const std::string &name);

// The generated part.
const std::vector<Operator> &table();

}  // namespace host::contract
