// MhcPre and its backward as the device's kernels compute them where ms_mhc/csrc knows no such form: products with phi in
// HF32, and the form with two gates and no mixing matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "mhc.h"

namespace host {

// What a matrix unit in HF32 mode sees of a factor: 10 explicit bits of the fraction, halves rounded away from zero.
float to_hf32(float value);

// The elements [first, first + count) of an array of `element`, and one of them as it is stored.
std::vector<float> read(const void *array, mhc::Element element, std::int64_t first, std::int64_t count);
void write(float value, void *array, mhc::Element element, std::int64_t index);

// ACLNN_SPEC.md section 1. Of two gates, phi and bias have 2*N rows, h_res is not written, and hc_eps is added to h_post too.
struct PreForm {
  bool hf32;
  bool two_gates;
};
void pre_forward(const mhc::PreForward &args, PreForm form);

// The gradients of the gates' and the mixing matrix's arguments, [T, F] (ACLNN_SPEC.md section 2: d1, d2, d3).
std::vector<float> gradients_of_arguments(const mhc::PreBackward &args);

// The rest of the backward pass, from these gradients on.
void pre_backward(const mhc::PreBackward &args, const std::vector<float> &grad_arguments, bool hf32);

}  // namespace host
