// Moving elements round the end of an axis.
#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/moving.h"

namespace host {
namespace {

void roll_axis(const Tensor &from, std::size_t axis, std::int64_t shift, const Tensor &to) {
  const std::int64_t size = from.shape[axis];
  if (size == 0) return;
  const std::int64_t moved = (shift % size + size) % size;
  convert(narrowed(from, axis, 0, size - moved), narrowed(to, axis, moved, size - moved));
  convert(narrowed(from, axis, size - moved, moved), narrowed(to, axis, 0, moved));
}

Tensor dense(const Tensor &like, std::vector<char> &room) {
  Tensor tensor = like;
  tensor.strides = contiguous_strides(like.shape);
  tensor.offset = 0;
  room.resize(static_cast<std::size_t>(like.size()) * size_of(like.dtype));
  tensor.data = room.data();
  return tensor;
}

// No axes mean all elements as one line.
Plan roll(const Tensor &self, const IntArray &shifts, const IntArray &axes, Tensor &out) {
  const std::vector<std::int64_t> along = axes.values.empty() ? std::vector<std::int64_t>{0} : axes.values;
  require(shifts.values.size() == along.size() && self.shape == out.shape, kInvalid, "aclnnRoll: ",
          shifts.values.size(), " shifts along ", along.size(), " axes of ", self.describe(), " into ", out.describe());
  return {[&, along] {
    std::vector<char> first, second;
    Tensor now = dense(self, first), next = dense(self, second);
    convert(self, now);
    const Shape shape = axes.values.empty() ? Shape{self.size()} : self.shape;
    for (Tensor *tensor : {&now, &next}) {
      tensor->shape = shape;
      tensor->strides = contiguous_strides(shape);
    }
    for (std::size_t i = 0; i < along.size(); ++i) {
      roll_axis(now, axis_of(along[i], shape.size()), shifts.values[i], next);
      std::swap(now, next);
    }
    now.shape = self.shape;
    now.strides = contiguous_strides(self.shape);
    convert(now, out);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnRoll, host::roll)
