// Reductions over axes.
#include "operators/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "framework/operator.h"
#include "framework/parallel.h"
#include "operators/engine.h"

namespace host {
namespace {

// A tensor as a matrix of views: the axes that stay, and those that are reduced.
struct Split {
  Shape kept, kept_strides, reduced, reduced_strides;

  Split(const Tensor &tensor, const std::vector<char> &is_reduced) {
    for (std::size_t i = 0; i < tensor.rank(); ++i) {
      (is_reduced[i] ? reduced : kept).push_back(tensor.shape[i]);
      (is_reduced[i] ? reduced_strides : kept_strides).push_back(tensor.strides[i]);
    }
  }
};

// No axes mean all of them.
std::vector<char> reduced_axes(const Tensor &self, const IntArray *axes) {
  std::vector<char> result(self.rank(), axes == nullptr || axes->values.empty());
  if (axes != nullptr) {
    for (std::int64_t axis : axes->values) {
      if (self.rank() > 0) result[axis_of(axis, self.rank())] = 1;
    }
  }
  return result;
}

Shape reduced_shape(const Tensor &self, const std::vector<char> &is_reduced, bool keep) {
  Shape shape;
  for (std::size_t i = 0; i < self.rank(); ++i) {
    if (!is_reduced[i]) shape.push_back(self.shape[i]);
    if (is_reduced[i] && keep) shape.push_back(1);
  }
  return shape;
}

std::int64_t offset_at(std::int64_t index, const Shape &shape, const Shape &strides) {
  std::int64_t offset = 0;
  for (std::size_t i = shape.size(); i-- > 0; index /= shape[i]) offset += index % shape[i] * strides[i];
  return offset;
}

// What is accumulated: wider than what is loaded.
template <typename C>
using Sum = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;

// Calls consume(accumulator, value) for all elements of each kept position, then finish(accumulator, position).
template <typename C, typename Accumulator, typename Consume, typename Finish>
void reduce(const Tensor &self, const Split &split, const Accumulator &start, const Consume &consume,
            const Finish &finish) {
  const std::int64_t positions = element_count(split.kept), count = element_count(split.reduced);
  const std::int64_t row = split.reduced.empty() ? 1 : split.reduced.back();
  const std::int64_t step = split.reduced.empty() ? 0 : split.reduced_strides.back();
  const std::int64_t rows = row == 0 ? 0 : count / row;
  const Shape outer(split.reduced.begin(), split.reduced.end() - (split.reduced.empty() ? 0 : 1));
  parallel_for(positions, positions * count > (1 << 15), [&](std::int64_t position) {
    Accumulator accumulator = start;
    const std::int64_t base = offset_at(position, split.kept, split.kept_strides);
    Piece<C> piece;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t offset = base + offset_at(r, outer, split.reduced_strides);
      for (std::int64_t from = 0; from < row; from += kPiece) {
        const std::int64_t n = std::min(kPiece, row - from);
        load(self, offset + from * step, step, n, piece.data());
        for (std::int64_t i = 0; i < n; ++i) consume(accumulator, piece[static_cast<std::size_t>(i)]);
      }
    }
    finish(accumulator, position);
  });
}

// Writes one number per kept position.
template <typename C>
class Writer {
 public:
  explicit Writer(const Tensor &out) : out_(out) {}
  void operator()(C value, std::int64_t position) const {
    store(&value, out_, offset_at(position, out_.shape, out_.strides), 1, 1);
  }

 private:
  const Tensor &out_;
};

void check_out(const char *name, const Tensor &out, const Shape &shape) {
  require(out.shape == shape, kInvalid, name, ": out is ", out.describe(), ", not ", to_string(shape));
}

void sum_into(const Tensor &self, const std::vector<char> &is_reduced, const Tensor &out) {
  with_compute(meet(compute_type(self.dtype), compute_type(out.dtype)), [&](auto zero) {
    using C = decltype(zero);
    const Writer<C> write(out);
    reduce<C>(self, Split(self, is_reduced), Sum<C>{}, [](Sum<C> &sum, C x) { sum += x; },
              [&](Sum<C> sum, std::int64_t position) { write(static_cast<C>(sum), position); });
  });
}

Plan sum(const Tensor &self, const IntArray *axes, bool keep, aclDataType, Tensor &out) {
  auto is_reduced = reduced_axes(self, axes);
  check_out("aclnnReduceSum", out, reduced_shape(self, is_reduced, keep));
  return {[&, is_reduced] { sum_into(self, is_reduced, out); }};
}

void mean_into(const Tensor &self, const std::vector<char> &is_reduced, const Tensor &out) {
  const Split split(self, is_reduced);
  const auto count = static_cast<double>(element_count(split.reduced));
  const Writer<double> write(out);
  reduce<double>(self, split, 0.0, [](double &sum, double x) { sum += x; },
                 [&](double sum, std::int64_t position) { write(sum / count, position); });
}

Plan mean(const Tensor &self, const IntArray *axes, bool keep, aclDataType, Tensor &out) {
  auto is_reduced = reduced_axes(self, axes);
  check_out("aclnnMean", out, reduced_shape(self, is_reduced, keep));
  return {[&, is_reduced] { mean_into(self, is_reduced, out); }};
}

template <int sign>
struct Extreme {
  template <typename C>
  static C start() {
    if constexpr (std::is_floating_point_v<C>) {
      return -sign * std::numeric_limits<C>::infinity();
    } else {
      return sign > 0 ? std::numeric_limits<C>::min() : std::numeric_limits<C>::max();
    }
  }
  template <typename C>
  static bool better(C x, C best) {
    return x != x || (sign > 0 ? x > best : x < best);
  }
};

template <int sign>
void extreme_into(const Tensor &self, const std::vector<char> &is_reduced, const Tensor &out) {
  with_compute(compute_type(self.dtype), [&](auto zero) {
    using C = decltype(zero);
    const Writer<C> write(out);
    reduce<C>(self, Split(self, is_reduced), Extreme<sign>::template start<C>(),
              [](C &best, C x) {
                if (Extreme<sign>::better(x, best)) best = x;
              },
              [&](C best, std::int64_t position) { write(best, position); });
  });
}

template <int sign>
Plan extreme(const Tensor &self, const IntArray *axes, bool keep, Tensor &out) {
  auto is_reduced = reduced_axes(self, axes);
  check_out("aclnnAmax", out, reduced_shape(self, is_reduced, keep));
  return {[&, is_reduced] { extreme_into<sign>(self, is_reduced, out); }};
}

template <int sign>
Plan extreme_of_all(const Tensor &self, Tensor &out) {
  return {[&] { extreme_into<sign>(self, std::vector<char>(self.rank(), 1), out); }};
}

struct Found {
  double best;
  std::int64_t index, at;
};

// Where along one axis the extreme is, and optionally what it is.
template <int sign>
void extreme_with_index(const Tensor &self, std::size_t axis, const Tensor *values, const Tensor &indices) {
  std::vector<char> is_reduced(self.rank(), 0);
  if (self.rank() > 0) is_reduced[axis] = 1;
  const Writer<std::int64_t> write(indices);
  reduce<double>(self, Split(self, is_reduced), Found{Extreme<sign>::template start<double>(), 0, 0},
                 [](Found &found, double x) {
                   if (Extreme<sign>::better(x, found.best)) found = {x, found.at, found.at};
                   ++found.at;
                 },
                 [&](const Found &found, std::int64_t position) {
                   write(found.index, position);
                   if (values != nullptr) Writer<double>{*values}(found.best, position);
                 });
}

template <int sign>
Plan arg_extreme(const Tensor &self, std::int64_t axis, bool, Tensor &out) {
  const std::size_t counted = self.rank() == 0 ? 0 : axis_of(axis, self.rank());
  return {[&, counted] { extreme_with_index<sign>(self, counted, nullptr, out); }};
}

template <int sign>
Plan extreme_along(const Tensor &self, std::int64_t axis, bool, Tensor &out, Tensor &indices) {
  const std::size_t counted = self.rank() == 0 ? 0 : axis_of(axis, self.rank());
  return {[&, counted] { extreme_with_index<sign>(self, counted, &out, indices); }};
}

// The p-norm. 0 counts what is not zero; infinity and its negative are the largest and the smallest.
void norm_into(const Tensor &self, double p, const std::vector<char> &is_reduced, const Tensor &out) {
  const Writer<double> write(out);
  const auto write_sum = [&](double sum, std::int64_t position) { write(sum, position); };
  const Split split(self, is_reduced);
  if (p == 0) return reduce<double>(self, split, 0.0, [](double &sum, double x) { sum += x != 0; }, write_sum);
  if (std::isinf(p)) {
    const auto further = [p](double &best, double x) {
      x = std::abs(x);
      if (x != x || (p > 0 ? x > best : x < best)) best = x;
    };
    return reduce<double>(self, split, p > 0 ? 0.0 : -p, further, write_sum);
  }
  reduce<double>(self, split, 0.0, [p](double &sum, double x) { sum += p == 2 ? x * x : std::pow(std::abs(x), p); },
                 [&](double sum, std::int64_t position) { write(std::pow(sum, 1 / p), position); });
}

Plan norm(const Tensor &self, const Scalar &power, const IntArray *axes, bool keep, Tensor &out) {
  auto is_reduced = reduced_axes(self, axes);
  check_out("aclnnNorm", out, reduced_shape(self, is_reduced, keep));
  return {[&, is_reduced] { norm_into(self, power.as<double>(), is_reduced, out); }};
}

Plan vector_norm(const Tensor &self, const Scalar &power, const IntArray *axes, bool keep, aclDataType, Tensor &out) {
  return norm(self, power, axes, keep, out);
}

// Whether all (or any) elements are not zero.
template <bool all>
Plan quantifier(const Tensor &self, const IntArray *axes, bool keep, Tensor &out) {
  auto is_reduced = reduced_axes(self, axes);
  check_out("aclnnAll", out, reduced_shape(self, is_reduced, keep));
  return {[&, is_reduced] {
    const Writer<double> write(out);
    reduce<double>(self, Split(self, is_reduced), all,
                   [](bool &state, double x) { state = all ? state && x != 0 : state || x != 0; },
                   [&](bool state, std::int64_t position) { write(state ? 1 : 0, position); });
  }};
}

}  // namespace

void reduce_axes(Reduction kind, const Tensor &self, const std::vector<std::int64_t> &axes, const Tensor &out) {
  const IntArray array{axes};
  const auto is_reduced = reduced_axes(self, &array);
  switch (kind) {
    case Reduction::kSum: return sum_into(self, is_reduced, out);
    case Reduction::kMean: return mean_into(self, is_reduced, out);
    case Reduction::kMax: return extreme_into<1>(self, is_reduced, out);
    case Reduction::kMin: return extreme_into<-1>(self, is_reduced, out);
  }
}

void arg_max(const Tensor &self, std::size_t axis, const Tensor &indices) {
  extreme_with_index<1>(self, axis, nullptr, indices);
}

void norm_of_all(const Tensor &self, double power, const Tensor &out) {
  norm_into(self, power, std::vector<char>(self.rank(), 1), out);
}

}  // namespace host

ACLNN_OPERATOR(aclnnReduceSum, host::sum)
ACLNN_OPERATOR(aclnnMean, host::mean)
ACLNN_OPERATOR(aclnnAmax, host::extreme<1>)
ACLNN_OPERATOR(aclnnAmin, host::extreme<-1>)
ACLNN_OPERATOR(aclnnMax, host::extreme_of_all<1>)
ACLNN_OPERATOR(aclnnMin, host::extreme_of_all<-1>)
ACLNN_OPERATOR(aclnnArgMax, host::arg_extreme<1>)
ACLNN_OPERATOR(aclnnArgMin, host::arg_extreme<-1>)
ACLNN_OPERATOR(aclnnMaxDim, host::extreme_along<1>)
ACLNN_OPERATOR(aclnnMinDim, host::extreme_along<-1>)
ACLNN_OPERATOR(aclnnNorm, host::norm)
ACLNN_OPERATOR(aclnnLinalgVectorNorm, host::vector_norm)
ACLNN_OPERATOR(aclnnAll, host::quantifier<true>)
ACLNN_OPERATOR(aclnnAny, host::quantifier<false>)
