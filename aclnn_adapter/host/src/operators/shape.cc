// Moving elements: transposing, joining, splitting, slicing, repeating.
#include <algorithm>

#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/moving.h"

namespace host {
namespace {

// Views of a tensor's pieces along an axis. The address is filled in when it is known.
std::vector<Tensor> pieces(const Tensor &tensor, std::size_t axis, const std::vector<std::shared_ptr<Tensor>> &parts) {
  std::vector<Tensor> views;
  std::int64_t start = 0;
  for (const auto &part : parts) {
    const std::int64_t size = part->rank() == tensor.rank() ? part->shape[axis] : 0;
    views.push_back(narrowed(tensor, axis, start, size));
    start += size;
  }
  return views;
}

Plan permute(const Tensor &self, const IntArray &axes, Tensor &out) {
  require(axes.values.size() == self.rank(), kInvalid, "aclnnPermute: ", axes.values.size(), " axes for ",
          self.describe());
  return {[&] {
    Tensor view = self;
    for (std::size_t i = 0; i < self.rank(); ++i) {
      const std::size_t axis = axis_of(axes.values[i], self.rank());
      view.shape[i] = self.shape[axis];
      view.strides[i] = self.strides[axis];
    }
    convert(view, out);
  }};
}

Plan concatenate(const TensorList &tensors, std::int64_t axis, Tensor &out) {
  const std::size_t counted = axis_of(axis, out.rank());
  std::int64_t total = 0;
  for (const auto &tensor : tensors.tensors) {
    if (tensor->rank() == out.rank()) total += tensor->shape[counted];
  }
  require(total == out.shape[counted], kInvalid, "aclnnCat: the pieces have ", total, " positions along axis ", axis,
          ", and out is ", out.describe());
  return {[&, counted] {
    const auto views = pieces(out, counted, tensors.tensors);
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (!views[i].empty()) convert(*tensors.tensors[i], views[i]);
    }
  }};
}

Plan stack_list(const TensorList &tensors, std::int64_t axis, Tensor &out) {
  const std::size_t counted = axis_of(axis, out.rank());
  require(out.shape[counted] == static_cast<std::int64_t>(tensors.tensors.size()), kInvalid, "aclnnStack: ",
          tensors.tensors.size(), " tensors in ", out.describe());
  return {[&, counted] {
    std::vector<const Tensor *> entries;
    for (const auto &tensor : tensors.tensors) entries.push_back(tensor.get());
    stack(entries, counted, out);
  }};
}

Plan split(const Tensor &self, std::size_t axis, TensorList &out) {
  return {[&, axis] {
    const auto views = pieces(self, axis, out.tensors);
    for (std::size_t i = 0; i < views.size(); ++i) convert(views[i], *out.tensors[i]);
  }};
}

Plan split_evenly(const Tensor &self, std::uint64_t, std::int64_t axis, TensorList &out) {
  return split(self, axis_of(axis, self.rank()), out);
}

Plan split_by_sizes(const Tensor &self, const IntArray &, std::int64_t axis, TensorList &out) {
  return split(self, axis_of(axis, self.rank()), out);
}

// Bounds as Python has them: negative ones count from the end, and all are cut to the axis.
Tensor sliced(const Tensor &self, std::size_t axis, std::int64_t start, std::int64_t end, std::int64_t step) {
  require(step > 0, kInvalid, "a slice with step ", step);
  const std::int64_t size = self.shape[axis];
  const auto bound = [size](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  const std::int64_t from = bound(start), to = std::max(from, bound(end));
  return narrowed(self, axis, from, (to - from + step - 1) / step, step);
}

void check_slice(const Tensor &view, const Tensor &out) {
  require(view.shape == out.shape, kInvalid, "the slice is ", view.describe(), " and out is ", out.describe());
}

Plan slice(const Tensor &self, std::int64_t axis, std::int64_t start, std::int64_t end, std::int64_t step,
           Tensor &out) {
  const std::size_t counted = axis_of(axis, self.rank());
  check_slice(sliced(self, counted, start, end, step), out);
  return {[&, counted, start, end, step] { convert(sliced(self, counted, start, end, step), out); }};
}

Tensor sliced(const Tensor &self, const IntArray &starts, const IntArray &ends, const IntArray &axes,
              const IntArray &steps) {
  Tensor view = self;
  for (std::size_t i = 0; i < axes.values.size(); ++i) {
    view = sliced(view, axis_of(axes.values[i], self.rank()), starts.values[i], ends.values[i], steps.values[i]);
  }
  return view;
}

Plan slice_axes(const Tensor &self, const IntArray &starts, const IntArray &ends, const IntArray &axes,
                const IntArray &steps, Tensor &out) {
  const std::size_t count = axes.values.size();
  require(starts.values.size() == count && ends.values.size() == count && steps.values.size() == count, kInvalid,
          "aclnnSliceV2: starts, ends, axes and steps differ in length");
  check_slice(sliced(self, starts, ends, axes, steps), out);
  return {[&] { convert(sliced(self, starts, ends, axes, steps), out); }};
}

Plan expand(const Tensor &self, const IntArray &, Tensor &out) {
  check_broadcast(out, {&self});
  return {[&] { convert(self, out); }};
}

Plan repeat_axes(const Tensor &self, const IntArray &times, Tensor &out) {
  require(times.values.size() >= self.rank() && times.values.size() == out.rank(), kInvalid, "aclnnRepeat: ",
          self.describe(), " by ", times.values.size(), " numbers in ", out.describe());
  return {[&] { repeat(self, times.values, out); }};
}

// Pads by constants: pairs of numbers, the last axis first.
Plan pad(const Tensor &self, const IntArray &amounts, const Scalar &value, Tensor &out) {
  require(amounts.values.size() <= 2 * self.rank() && self.rank() == out.rank(), kInvalid, "aclnnConstantPadNd: ",
          amounts.values.size(), " amounts for ", self.describe());
  return {[&] {
    with_compute(compute_type(out.dtype), [&](auto zero) {
      using C = decltype(zero);
      map<C>([v = value.as<C>()] { return v; }, out);
    });
    Tensor from = self, to = out;
    for (std::size_t i = 0; i < amounts.values.size() / 2; ++i) {
      const std::size_t axis = self.rank() - 1 - i;
      const std::int64_t before = amounts.values[2 * i], after = amounts.values[2 * i + 1];
      const std::int64_t cut = std::max<std::int64_t>(-before, 0);
      from = narrowed(from, axis, cut, self.shape[axis] - cut - std::max<std::int64_t>(-after, 0));
      to = narrowed(to, axis, std::max<std::int64_t>(before, 0), from.shape[axis]);
    }
    convert(from, to);
  }};
}

Plan flip(const Tensor &self, const IntArray &axes, Tensor &out) {
  return {[&] {
    Tensor view = self;
    for (std::int64_t axis : axes.values) {
      const std::size_t counted = axis_of(axis, self.rank());
      view.offset += (self.shape[counted] - 1) * self.strides[counted];
      view.strides[counted] = -self.strides[counted];
    }
    convert(view, out);
  }};
}

// Keeps what lies on one side of a diagonal of the last two axes.
template <bool lower>
Plan triangle(const Tensor &self, std::int64_t diagonal, Tensor &out) {
  require(self.rank() >= 2, kInvalid, "aclnnTril: ", self.describe(), " is not a matrix");
  return {[&, diagonal] {
    const std::size_t row_axis = self.rank() - 2;
    for (std::int64_t row = 0; row < self.shape[row_axis]; ++row) {
      const Tensor from = narrowed(self, row_axis, row, 1), to = narrowed(out, row_axis, row, 1);
      const std::int64_t size = self.shape.back();
      const std::int64_t split_at = std::clamp<std::int64_t>(row + diagonal + (lower ? 1 : 0), 0, size);
      const std::int64_t kept = lower ? 0 : split_at, zeroed = lower ? split_at : 0;
      const std::int64_t kept_size = lower ? split_at : size - split_at;
      convert(narrowed(from, row_axis + 1, kept, kept_size), narrowed(to, row_axis + 1, kept, kept_size));
      map<std::int64_t>([] { return std::int64_t{0}; }, narrowed(to, row_axis + 1, zeroed, size - kept_size));
    }
  }};
}

Plan arange(const Scalar &start, const Scalar &, const Scalar &step, Tensor &out) {
  require(out.rank() == 1, kInvalid, "aclnnArange: out is ", out.describe());
  return {[&] {
    with_compute(compute_type(out.dtype), [&](auto zero) {
      using C = decltype(zero);
      for (std::int64_t i = 0; i < out.shape[0]; ++i) {
        const C value = start.as<C>() + static_cast<C>(i) * step.as<C>();
        store(&value, out, i * out.strides[0], 1, 1);
      }
    });
  }};
}

Plan eye(std::int64_t rows, std::int64_t columns, Tensor &out) {
  require(out.shape == (Shape{rows, columns}), kInvalid, "aclnnEye: ", rows, " by ", columns, " in ", out.describe());
  return {[&] {
    map<std::int64_t>([] { return std::int64_t{0}; }, out);
    Tensor diagonal = out;
    diagonal.shape = {std::min(out.shape[0], out.shape[1])};
    diagonal.strides = {out.strides[0] + out.strides[1]};
    map<std::int64_t>([] { return std::int64_t{1}; }, diagonal);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnPermute, host::permute)
ACLNN_OPERATOR(aclnnCat, host::concatenate)
ACLNN_OPERATOR(aclnnStack, host::stack_list)
ACLNN_OPERATOR(aclnnSplitTensor, host::split_evenly)
ACLNN_OPERATOR(aclnnSplitWithSize, host::split_by_sizes)
ACLNN_OPERATOR(aclnnSlice, host::slice)
ACLNN_OPERATOR(aclnnSliceV2, host::slice_axes)
ACLNN_OPERATOR(aclnnExpand, host::expand)
ACLNN_OPERATOR(aclnnRepeat, host::repeat_axes)
ACLNN_OPERATOR(aclnnConstantPadNd, host::pad)
ACLNN_OPERATOR(aclnnFlip, host::flip)
ACLNN_OPERATOR(aclnnTril, host::triangle<true>)
ACLNN_OPERATOR(aclnnTriu, host::triangle<false>)
ACLNN_OPERATOR(aclnnArange, host::arange)
ACLNN_OPERATOR(aclnnEye, host::eye)
