// Loss scaling: gradients of a loss that was multiplied by a number, and what becomes of that number.
#include <atomic>
#include <cmath>

#include "framework/operator.h"
#include "operators/engine.h"

namespace host {
namespace {

float read(const Tensor &number) {
  float value = 0;
  load(number, 0, 1, 1, &value);
  return value;
}

void write(float value, const Tensor &number) { store(&value, number, 0, 1, 1); }

void check_numbers(std::initializer_list<const Tensor *> numbers) {
  for (const Tensor *number : numbers) {
    require(number->size() == 1, kInvalid, "one number is wanted, not ", number->describe());
  }
}

// Scaled gradients back to their size. found_inf becomes 1 where one of them is not finite, and stays as it is else.
Plan unscale(const TensorList &grads, const Tensor &found_inf, const Tensor &inverse_scale) {
  check_numbers({&found_inf, &inverse_scale});
  return {[&] {
    std::atomic<bool> finite = true;  // elements are seen by several threads
    for (const auto &grad : grads.tensors) {
      map<float>(
        [&finite, scale = read(inverse_scale)](float g) {
          if (!std::isfinite(g)) finite = false;
          return g * scale;
        },
        *grad, *grad);
    }
    if (!finite) write(1, found_inf);
  }};
}

// The scale shrinks where a gradient was not finite, and grows after so many steps without such a gradient.
Plan update_scale(const Tensor &scale, const Tensor &steps, const Tensor &found_inf, double growth, double backoff,
                  std::int64_t interval, Tensor &new_scale, Tensor &new_steps) {
  check_numbers({&scale, &steps, &found_inf, &new_scale, &new_steps});
  return {[&, growth, backoff, interval] {
    const bool found = read(found_inf) != 0;
    const float counted = read(steps) + 1, before = read(scale);
    const bool grows = !found && counted == static_cast<float>(interval);
    const auto grown = static_cast<float>(before * growth);
    write(found ? static_cast<float>(before * backoff) : grows && std::isfinite(grown) ? grown : before, new_scale);
    write(found || grows ? 0 : counted, new_steps);
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnForeachNonFiniteCheckAndUnscale, host::unscale)
ACLNN_OPERATOR(aclnnAmpUpdateScale, host::update_scale)
