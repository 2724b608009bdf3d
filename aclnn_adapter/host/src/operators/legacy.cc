// Operators for which MindSpore takes the older interface.
#include <cmath>

#include "framework/dense.h"
#include "framework/legacy.h"
#include "operators/engine.h"
#include "operators/indexing.h"
#include "operators/lines.h"
#include "operators/moving.h"
#include "operators/normalize.h"
#include "operators/reduce.h"

namespace host {
namespace {

// Axes, shapes and the like are inputs of their own.
std::vector<std::int64_t> read_list(const Tensor &tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.size()));
  load(tensor, 0, 1, tensor.size(), values.data());
  return values;
}

void add_n(const LegacyCall &call) {
  const Tensor &out = call.output();
  copy_elements(call.input(0), out);
  for (std::size_t i = 1; i < call.inputs.size(); ++i) {
    map_in(compute_type(out.dtype), [](auto a, auto b) { return a + b; }, out, out, call.input(i));
  }
}

void gather(const LegacyCall &call) {
  const std::int64_t axis = read_list(call.input(2)).at(0);
  select(call.input(0), axis_of(axis, call.input(0).rank()), call.input(1), call.output(), "GatherV2");
}

void one_hot(const LegacyCall &call) {
  const std::size_t axis = axis_of(call.number("axis", -1), call.output().rank());
  one_hot(call.input(0), call.input(2), call.input(3), axis, call.output());
}

// Rows of the first input added up by segment: the derivative of gather.
void segment_sum(const LegacyCall &call) {
  const Tensor &rows = call.input(0), &out = call.output();
  const auto segments = read_list(call.input(1));
  const std::size_t axes = call.input(1).rank();
  const Lines from = Lines::from_axis(rows, axes), to = Lines::from_axis(out, 1);
  std::vector<std::vector<double>> sums(static_cast<std::size_t>(to.count()));
  for (auto &sum : sums) sum.resize(static_cast<std::size_t>(to.length()));
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i] < 0 || segments[i] >= out.shape.at(0)) continue;
    const Line line = from.read(static_cast<std::int64_t>(i));
    auto &sum = sums[static_cast<std::size_t>(segments[i])];
    for (std::size_t j = 0; j < line.size(); ++j) sum[j] += line[j];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    to.write(static_cast<std::int64_t>(i), Line(sums[i].begin(), sums[i].end()));
  }
}

template <Reduction kind>
void reduce(const LegacyCall &call) {
  reduce_axes(kind, call.input(0), read_list(call.input(1)), call.output());
}

void arg_max(const LegacyCall &call) {
  const Tensor &self = call.input(0);
  arg_max(self, axis_of(read_list(call.input(1)).at(0), self.rank()), call.output());
}

template <int value>
void fill_like(const LegacyCall &call) {
  map<std::int64_t>([] { return std::int64_t{value}; }, call.output());
}

void copy(const LegacyCall &call) { convert(call.input(0), call.output()); }

void pack(const LegacyCall &call) {
  std::vector<const Tensor *> tensors;
  for (const Tensor &tensor : call.inputs) tensors.push_back(&tensor);
  stack(tensors, axis_of(call.number("axis", 0), call.output().rank()), call.output());
}

void unpack(const LegacyCall &call) {
  const Tensor &self = call.input(0);
  const std::size_t axis = axis_of(call.number("axis", 0), self.rank());
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    Tensor view = narrowed(self, axis, static_cast<std::int64_t>(i), 1);
    view.shape.erase(view.shape.begin() + static_cast<std::ptrdiff_t>(axis));
    view.strides.erase(view.strides.begin() + static_cast<std::ptrdiff_t>(axis));
    convert(view, call.output(i));
  }
}

// Equal pieces; the axis is the first input.
void split(const LegacyCall &call) {
  const Tensor &self = call.input(1);
  const std::size_t axis = axis_of(read_list(call.input(0)).at(0), self.rank());
  std::int64_t start = 0;
  for (const Tensor &piece : call.outputs) {
    convert(narrowed(self, axis, start, piece.shape.at(axis)), piece);
    start += piece.shape[axis];
  }
}

void tile(const LegacyCall &call) { repeat(call.input(0), read_list(call.input(1)), call.output()); }

// Python's slices: bit i of a mask says that axis i ignores its bound, keeps one position, or is new.
Tensor strided(const Tensor &self, const LegacyCall &call, std::size_t first) {
  const auto begin = read_list(call.input(first)), end = read_list(call.input(first + 1));
  const auto steps = read_list(call.input(first + 2));
  const auto bit = [&call](const char *mask, std::size_t i) { return (call.number(mask, 0) >> i & 1) != 0; };
  require(call.number("ellipsis_mask", 0) == 0, kInvalid, "StridedSlice: an ellipsis is not served by the host CANN");
  Tensor view = self;
  view.shape.clear();
  view.strides.clear();
  std::size_t axis = 0;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    if (bit("new_axis_mask", i)) {
      view.shape.push_back(1);
      view.strides.push_back(0);
      continue;
    }
    const std::int64_t size = self.shape.at(axis), step = steps[i], last = step > 0 ? size : size - 1;
    const auto bound = [&](std::int64_t at) {
      return std::clamp<std::int64_t>(at < 0 ? at + size : at, step > 0 ? 0 : -1, last);
    };
    const std::int64_t from = bit("begin_mask", i) ? (step > 0 ? 0 : size - 1) : bound(begin[i]);
    view.offset += from * self.strides[axis];
    if (!bit("shrink_axis_mask", i)) {
      const std::int64_t to = bit("end_mask", i) ? (step > 0 ? size : -1) : bound(end[i]);
      view.shape.push_back(std::max<std::int64_t>((to - from + step - (step > 0 ? 1 : -1)) / step, 0));
      view.strides.push_back(self.strides[axis] * step);
    }
    ++axis;
  }
  for (; axis < self.rank(); ++axis) {
    view.shape.push_back(self.shape[axis]);
    view.strides.push_back(self.strides[axis]);
  }
  return view;
}

void strided_slice(const LegacyCall &call) { convert(strided(call.input(0), call, 1), call.output()); }

void strided_slice_grad(const LegacyCall &call) {
  fill_like<0>(call);
  convert(call.input(4), strided(call.output(), call, 1));
}

void slice(const LegacyCall &call) {
  const auto starts = read_list(call.input(1));
  Tensor view = call.input(0);
  for (std::size_t i = 0; i < starts.size(); ++i) view = narrowed(view, i, starts[i], call.output().shape.at(i));
  convert(view, call.output());
}

// Derivatives in terms of the output y: the inputs are y and the gradient.
struct SqrtGrad { static float of(float y, float g) { return 0.5F * g / y; } };
struct RsqrtGrad { static float of(float y, float g) { return -0.5F * g * y * y * y; } };
struct ReciprocalGrad { static float of(float y, float g) { return -g * y * y; } };
struct SigmoidGrad { static float of(float y, float g) { return g * y * (1 - y); } };
struct TanhGrad { static float of(float y, float g) { return g * (1 - y * y); } };

template <typename Function>
void derivative(const LegacyCall &call) {
  map<float>([](float y, float g) { return Function::of(y, g); }, call.output(), call.input(0), call.input(1));
}

struct Square { template <typename T> static T of(T x) { return x * x; } };
struct Neg { template <typename T> static T of(T x) { return -x; } };
struct Sqrt { template <typename T> static T of(T x) { return static_cast<T>(std::sqrt(x)); } };
struct Exp { template <typename T> static T of(T x) { return static_cast<T>(std::exp(x)); } };

template <typename Function>
void unary(const LegacyCall &call) {
  map_in(compute_type(call.input(0).dtype), [](auto x) { return Function::of(x); }, call.output(), call.input(0));
}

struct Add { template <typename T> static T of(T a, T b) { return a + b; } };
struct Sub { template <typename T> static T of(T a, T b) { return a - b; } };
struct Mul { template <typename T> static T of(T a, T b) { return a * b; } };
struct Div { template <typename T> static T of(T a, T b) { return a / b; } };
struct Maximum { template <typename T> static T of(T a, T b) { return a > b ? a : b; } };
struct Minimum { template <typename T> static T of(T a, T b) { return a < b ? a : b; } };
struct Pow { template <typename T> static T of(T a, T b) { return static_cast<T>(std::pow(a, b)); } };

template <typename Function>
void binary(const LegacyCall &call) {
  map_in(compute_type(call.input(0).dtype), [](auto a, auto b) { return Function::of(a, b); }, call.output(),
         call.input(0), call.input(1));
}

void bias_add_grad(const LegacyCall &call) {
  std::vector<std::int64_t> axes;
  for (std::size_t i = 0; i + 1 < call.input(0).rank(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  reduce_axes(Reduction::kSum, call.input(0), axes, call.output());
}

std::size_t first_normalized(const LegacyCall &call, const Tensor &input) {
  return axis_of(call.number("begin_norm_axis", -1), input.rank());
}

void layer_norm(const LegacyCall &call) {
  layer_norm({call.input(0), &call.input(1), &call.input(2), call.output(0), &call.output(1), &call.output(2)},
             first_normalized(call, call.input(0)), call.real("epsilon", 1e-7), Spread::kVariance);
}

// The derivative has no attributes: it normalizes over the axes of gamma, with the eps of the forward operator.
void layer_norm_grad(const LegacyCall &call) {
  const Tensor &grad = call.input(0), &x = call.input(1), &variance = call.input(2), &mean = call.input(3);
  const Tensor &gamma = call.input(4);
  layer_norm_backward({grad, x, mean, variance, &gamma, &call.output(0), &call.output(1), &call.output(2)},
                      x.rank() - gamma.rank(), call.real("epsilon", 1e-7), Spread::kVariance);
}

// The first input is the variable, and the output its memory or a copy.
template <int sign>
void assign(const LegacyCall &call) {
  const Tensor &variable = call.input(0);
  if constexpr (sign == 0) {
    convert(call.input(1), variable);
  } else {
    map_in(compute_type(variable.dtype), [](auto a, auto b) { return a + static_cast<decltype(a)>(sign) * b; },
           variable, variable, call.input(1));
  }
  if (!call.outputs.empty() && call.output().data != variable.data) convert(variable, call.output());
}

struct Entry {
  const char *type;
  LegacyKernel kernel;
};

constexpr Entry kEntries[] = {
  {"Add", binary<Add>},
  {"AddN", add_n},
  {"ArgMaxV2", arg_max},
  {"Assign", assign<0>},
  {"AssignAdd", assign<1>},
  {"AssignSub", assign<-1>},
  {"BiasAdd", binary<Add>},
  {"BiasAddGrad", bias_add_grad},
  {"BroadcastTo", copy},
  {"Cast", copy},
  {"Exp", unary<Exp>},
  {"GatherV2", gather},
  {"LayerNorm", layer_norm},
  {"LayerNormGrad", layer_norm_grad},
  {"Maximum", binary<Maximum>},
  {"Minimum", binary<Minimum>},
  {"Mul", binary<Mul>},
  {"Neg", unary<Neg>},
  {"OneHot", one_hot},
  {"OnesLike", fill_like<1>},
  {"Pack", pack},
  {"Pow", binary<Pow>},
  {"RealDiv", binary<Div>},
  {"ReciprocalGrad", derivative<ReciprocalGrad>},
  {"ReduceMax", reduce<Reduction::kMax>},
  {"ReduceMean", reduce<Reduction::kMean>},
  {"ReduceMin", reduce<Reduction::kMin>},
  {"ReduceSum", reduce<Reduction::kSum>},
  {"RsqrtGrad", derivative<RsqrtGrad>},
  {"SigmoidGrad", derivative<SigmoidGrad>},
  {"Slice", slice},
  {"Split", split},
  {"Sqrt", unary<Sqrt>},
  {"SqrtGrad", derivative<SqrtGrad>},
  {"Square", unary<Square>},
  {"StridedSlice", strided_slice},
  {"StridedSliceGrad", strided_slice_grad},
  {"Sub", binary<Sub>},
  {"TanhGrad", derivative<TanhGrad>},
  {"TensorMove", copy},
  {"Tile", tile},
  {"Unpack", unpack},
  {"UnsortedSegmentSum", segment_sum},
  {"ZerosLike", fill_like<0>},
};

[[gnu::constructor]] void serve_all() {
  for (const Entry &entry : kEntries) serve(entry.type, entry.kernel);
}

}  // namespace
}  // namespace host
