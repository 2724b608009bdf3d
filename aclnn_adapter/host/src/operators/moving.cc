#include "operators/moving.h"

#include "framework/dense.h"
#include "operators/engine.h"

namespace host {

void convert(const Tensor &from, const Tensor &to) {
  if (from.dtype == to.dtype && from.shape == to.shape) return copy_elements(from, to);
  map_in(compute_type(from.dtype), [](auto x) { return x; }, to, from);
}

Tensor narrowed(const Tensor &tensor, std::size_t axis, std::int64_t start, std::int64_t size, std::int64_t step) {
  Tensor view = tensor;
  view.offset += start * tensor.strides[axis];
  view.shape[axis] = size;
  view.strides[axis] *= step;
  return view;
}

void stack(const std::vector<const Tensor *> &tensors, std::size_t axis, const Tensor &out) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor view = narrowed(out, axis, static_cast<std::int64_t>(i), 1);
    view.shape.erase(view.shape.begin() + static_cast<std::ptrdiff_t>(axis));
    view.strides.erase(view.strides.begin() + static_cast<std::ptrdiff_t>(axis));
    convert(*tensors[i], view);
  }
}

// Every axis as two, the number of repetitions and the size: a copy that broadcasts over the first of each pair.
void repeat(const Tensor &self, const std::vector<std::int64_t> &times, const Tensor &out) {
  Tensor from = self, to = out;
  for (Shape *list : {&from.shape, &from.strides, &to.shape, &to.strides}) list->clear();
  const std::size_t more = out.rank() - self.rank();
  for (std::size_t i = 0; i < out.rank(); ++i) {
    const std::int64_t size = i < more ? 1 : self.shape[i - more], step = i < more ? 0 : self.strides[i - more];
    from.shape.insert(from.shape.end(), {1, size});
    from.strides.insert(from.strides.end(), {0, step});
    to.shape.insert(to.shape.end(), {times[i], size});
    to.strides.insert(to.strides.end(), {out.strides[i] * size, out.strides[i]});
  }
  map_in(compute_type(self.dtype), [](auto x) { return x; }, to, from);
}

}  // namespace host
