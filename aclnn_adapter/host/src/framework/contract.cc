#include "framework/contract.h"

#include <stdexcept>

namespace host::contract {

const Argument &Operator::argument(const std::string &argument_name) const {
  for (const Argument &argument : arguments) {
    if (argument.name == argument_name) return argument;
  }
  throw std::logic_error(name + " has no argument " + argument_name);
}

const Operator *find(const std::string &name) {
  for (const Operator &op : table()) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace host::contract
