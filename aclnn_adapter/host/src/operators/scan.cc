// Running sums, and how often values fall into intervals.
#include <algorithm>
#include <limits>
#include <vector>

#include "framework/operator.h"
#include "operators/along_axis.h"

namespace host {
namespace {

Plan cumulative_sum(const Tensor &self, std::int64_t axis, aclDataType, Tensor &out) {
  require(out.shape == self.shape, kInvalid, "aclnnCumsum: ", self.describe(), " into ", out.describe());
  const std::size_t counted = axis_of(axis, std::max<std::size_t>(self.rank(), 1));
  return {[&, counted] {
    const Tensor from = at_least_one_axis(self), to = at_least_one_axis(out);
    const auto starts = line_starts(from, counted), results = line_starts(to, counted);
    const std::int64_t length = from.shape[counted];
    with_compute(compute_type(out.dtype), [&](auto zero) {
      using C = decltype(zero);
      using Sum = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;
      std::vector<C> line(static_cast<std::size_t>(length));
      for (std::size_t i = 0; i < starts.size(); ++i) {
        load(from, starts[i], from.strides[counted], length, line.data());
        Sum sum{};
        for (C &value : line) value = static_cast<C>(sum += value);
        store(line.data(), to, results[i], to.strides[counted], length);
      }
    });
  }};
}

// Equal intervals between the bounds, the last with its upper end. Equal bounds mean those of the data.
Plan histogram(const Tensor &self, std::int64_t bins, const Scalar &min, const Scalar &max, Tensor &out) {
  require(bins > 0 && out.shape == Shape{bins}, kInvalid, "aclnnHistc: ", bins, " bins in ", out.describe());
  require(min.as<double>() <= max.as<double>(), kInvalid, "aclnnHistc: min is above max");
  return {[&, bins] {
    std::vector<double> values;
    for (const std::int64_t start : line_starts(at_least_one_axis(self), 0)) {
      const Tensor from = at_least_one_axis(self);
      std::vector<double> line(static_cast<std::size_t>(from.shape[0]));
      load(from, start, from.strides[0], from.shape[0], line.data());
      values.insert(values.end(), line.begin(), line.end());
    }
    double low = min.as<double>(), high = max.as<double>();
    if (low == high && !values.empty()) {
      low = *std::min_element(values.begin(), values.end());
      high = *std::max_element(values.begin(), values.end());
    }
    if (low == high) {
      low -= 1;
      high += 1;
    }
    std::vector<double> counts(static_cast<std::size_t>(bins));
    for (const double value : values) {
      if (!(value >= low && value <= high)) continue;
      const auto bin = static_cast<std::int64_t>((value - low) / (high - low) * static_cast<double>(bins));
      ++counts[static_cast<std::size_t>(std::min(bin, bins - 1))];
    }
    store(counts.data(), out, 0, out.strides[0], bins);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnCumsum, host::cumulative_sum)
ACLNN_OPERATOR(aclnnHistc, host::histogram)
