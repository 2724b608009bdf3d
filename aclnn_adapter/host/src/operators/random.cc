// Random numbers. They are drawn from another generator than the vendor's: equal seeds repeat, but give other numbers.
#include <random>
#include <vector>

#include "framework/operator.h"
#include "operators/moving.h"

namespace host {
namespace {

// MindSpore counts the offset up with every call, so that calls with one seed differ.
Plan normal(Tensor &self, float mean, float deviation, std::int64_t seed, std::int64_t offset) {
  require(deviation >= 0, kInvalid, "aclnnInplaceNormal: the standard deviation is ", deviation);
  return {[&, mean, deviation, seed, offset] {
    std::seed_seq words{seed, seed >> 32, offset, offset >> 32};
    std::mt19937_64 generator(words);
    std::normal_distribution<double> draw(mean, deviation > 0 ? deviation : 1);
    std::vector<double> numbers(static_cast<std::size_t>(self.size()), mean);
    if (deviation > 0) {
      for (double &number : numbers) number = draw(generator);  // one after another, so that a seed repeats
    }
    Tensor dense = self;
    dense.strides = contiguous_strides(self.shape);
    dense.offset = 0;
    dense.dtype = ACL_DOUBLE;
    dense.data = numbers.data();
    convert(dense, self);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnInplaceNormal, host::normal)
