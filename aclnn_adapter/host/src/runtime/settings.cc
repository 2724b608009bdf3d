#include <cctype>
#include <cstdlib>
#include <string>

#include "runtime/host.h"

namespace host {
namespace {

std::string variable(const char *name, const char *otherwise) {
  const char *value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

Settings read() {
  return {
    variable("CANN_HOST_SOC", "Ascend950PR_9579"),
    variable("CANN_HOST_TRACE", ""),
    variable("CANN_HOST_EXECUTOR_REUSE", "on") != "off",
    variable("CANN_HOST_CHECK_LEAKS", "0") != "0",
    std::strtoull(variable("CANN_HOST_MEMORY", "8589934592").c_str(), nullptr, 10),
  };
}

bool starts_with(const std::string &text, const std::string &start) { return text.rfind(start, 0) == 0; }

}  // namespace

const Settings &settings() {
  static const auto *values = new Settings(read());
  return *values;
}

std::string soc_version() {
  const std::string &name = settings().soc_name;
  if (starts_with(name, "Ascend950")) return "ascend950";
  if (starts_with(name, "Ascend910_93")) return "ascend910_93";
  if (starts_with(name, "Ascend910B")) return "ascend910b";
  std::string lower;
  for (char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace host
