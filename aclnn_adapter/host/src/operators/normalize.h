// Layer normalization, which the aclnn and the older operator interface share.
#pragma once

#include <cstddef>

#include "framework/objects.h"

namespace host {

enum class Spread { kReciprocalDeviation, kVariance };  // what is handed on beside the mean

struct LayerNormTensors {
  const Tensor &input;
  const Tensor *weight, *bias;  // null: ones, zeros
  const Tensor &out;
  const Tensor *mean, *spread;  // may be null
};

// Over all axes from `first` on.
void layer_norm(const LayerNormTensors &tensors, std::size_t first, double eps, Spread kind);

struct LayerNormGradTensors {
  const Tensor &grad_output, &input, &mean, &spread;
  const Tensor *weight;
  const Tensor *grad_input, *grad_weight, *grad_bias;  // may be null
};

void layer_norm_backward(const LayerNormGradTensors &tensors, std::size_t first, double eps, Spread kind);

}  // namespace host
