// Random numbers. They are drawn from another generator than the vendor's: equal seeds repeat, but give other numbers.
#include <random>

#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

// MindSpore counts the offset up with every call, so that calls with one seed differ.
Plan normal(Tensor &self, float mean, float deviation, std::int64_t seed, std::int64_t offset) {
  require(deviation >= 0, kInvalid, "aclnnInplaceNormal: the standard deviation is ", deviation);
  return {[&, mean, deviation, seed, offset] {
    std::seed_seq words{seed, seed >> 32, offset, offset >> 32};
    std::mt19937_64 generator(words);
    std::normal_distribution<double> numbers(0, 1);
    map<double>([&] { return mean + deviation * numbers(generator); }, self);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnInplaceNormal, host::normal)
