// SPDX-License-Identifier: Apache-2.0
// The operators as MindSpore's ops.Custom("<library>:<name>", func_type="aot") calls them on a CPU. One C function per
// operator; `params` holds the inputs, then the outputs, in this order:
//
//   MhcPre               x, phi, alpha, bias, [gamma], scalars [norm_eps, hc_eps]
//                        -> h_in, h_post, h_res, inv_rms, h_mix, h_pre
//   MhcPreBackward       x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post,
//                        [gamma], [grad_x_post], scalars [hc_eps]
//                        -> grad_x, grad_phi, grad_alpha, grad_bias, [grad_gamma]
//   MhcPost              x, [h_res], h_out, h_post -> out
//   MhcPostBackward      grad_output, x, [h_res], h_out, h_post -> grad_x, grad_h_res, grad_h_out, grad_h_post
//   MhcSinkhorn          x, scalars [eps, num_iters, recipe] -> output
//   MhcSinkhornBackward  grad_output, x, scalars [eps, num_iters, recipe] -> grad_x
//
// A tensor in brackets is optional: leave it out, the number of tensors says which are there (gamma and grad_gamma come
// and go together). `scalars` is a small float32 tensor; recipe is 0 for "deepseek_v4", 1 for "paper". x is [T, N, D]
// or [B, S, N, D] (Sinkhorn: [..., N, N]). What has x's element type (float32, float16 or bfloat16) is x, h_in, h_out,
// out, grad_output of MhcPost and their gradients; everything else is float32.
//
// A function returns 0, or one of Status; it throws nothing and prints nothing.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "mhc.h"

#if defined(__GNUC__)
#define MHC_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define MHC_EXPORT extern "C"
#endif

namespace {

enum Status : int {
  kDone = 0,
  kWrongCount = 1,    // the number of tensors
  kWrongType = 2,     // an element type
  kWrongShape = 3,    // a shape does not fit x's
  kWrongScalar = 4,   // num_iters or recipe
  kFailed = 5,        // no memory, or another exception
};

// Thrown and caught in this file only.
struct Refused {
  Status status;
};

bool element_of(const char *dtype, mhc::Element *element) {
  if (std::strcmp(dtype, "float32") == 0) *element = mhc::Element::kFloat32;
  else if (std::strcmp(dtype, "float16") == 0) *element = mhc::Element::kFloat16;
  else if (std::strcmp(dtype, "bfloat16") == 0) *element = mhc::Element::kBFloat16;
  else return false;
  return true;
}

// Takes the tensors one after the other, each with the last dimensions that it must have.
class Tensors {
 public:
  Tensors(int count, void **params, const int *ndims, int64_t **shapes, const char **dtypes)
      : count_(count), params_(params), ndims_(ndims), shapes_(shapes), dtypes_(dtypes) {
    if (count < 0 || !params || !ndims || !shapes || !dtypes) throw Refused{kWrongCount};
  }

  // x is tensor number `index`; everything else is measured by it.
  void measure(int index, bool square) {
    if (index >= count_) throw Refused{kWrongCount};
    const int ndim = ndims_[index];
    const int64_t *shape = shapes_[index];
    if (ndim < 2) throw Refused{kWrongShape};
    if (!element_of(dtypes_[index], &element)) throw Refused{kWrongType};
    sizes = {1, shape[ndim - 2], shape[ndim - 1]};
    for (int i = 0; i < ndim - 2; ++i) sizes.tokens *= shape[i];
    if (sizes.tokens < 0 || sizes.streams < 1 || sizes.hidden < 1) throw Refused{kWrongShape};
    if (square && sizes.streams != sizes.hidden) throw Refused{kWrongShape};
  }

  // One per token, in x's element type or in float32: [..., last]
  void *like_x(std::initializer_list<int64_t> last) { return take(element, sizes.tokens, last); }
  float *per_token(std::initializer_list<int64_t> last) { return floats(sizes.tokens, last); }
  float *parameter(std::initializer_list<int64_t> shape) { return floats(1, shape); }

  mhc::Element element = mhc::Element::kFloat32;
  mhc::Sizes sizes{};

 private:
  float *floats(int64_t rows, std::initializer_list<int64_t> last) {
    return static_cast<float *>(take(mhc::Element::kFloat32, rows, last));
  }

  void *take(mhc::Element wanted, int64_t rows, std::initializer_list<int64_t> last) {
    if (next_ >= count_) throw Refused{kWrongCount};
    const int index = next_++;
    mhc::Element found;
    if (!element_of(dtypes_[index], &found) || found != wanted) throw Refused{kWrongType};
    const int leading = ndims_[index] - static_cast<int>(last.size());
    if (leading < 0) throw Refused{kWrongShape};
    const int64_t *shape = shapes_[index];
    int64_t found_rows = 1;
    for (int i = 0; i < leading; ++i) found_rows *= *shape++;
    if (found_rows != rows) throw Refused{kWrongShape};
    for (const int64_t size : last) {
      if (*shape++ != size) throw Refused{kWrongShape};
    }
    if (!params_[index] && rows != 0) throw Refused{kFailed};
    return params_[index];
  }

  int count_;
  int next_ = 0;
  void **params_;
  const int *ndims_;
  int64_t **shapes_;
  const char **dtypes_;
};

template <typename Work>
int guarded(const Work &work) noexcept {
  try {
    work();
    return kDone;
  } catch (const Refused &refused) {
    return refused.status;
  } catch (...) {
    return kFailed;
  }
}

void require_count(int count, std::initializer_list<int> accepted) {
  for (const int accept : accepted) {
    if (count == accept) return;
  }
  throw Refused{kWrongCount};
}

// scalars [eps, num_iters, recipe]
template <typename Arguments>
void read_sinkhorn_scalars(const float *scalars, Arguments *a) {
  a->eps = scalars[0];
  if (!(scalars[1] >= 1.0f && scalars[1] <= 1e6f) || scalars[1] != std::floor(scalars[1])) throw Refused{kWrongScalar};
  a->num_iters = static_cast<int64_t>(scalars[1]);
  if (scalars[2] == 0.0f) a->recipe = mhc::Recipe::kDeepSeekV4;
  else if (scalars[2] == 1.0f) a->recipe = mhc::Recipe::kPaper;
  else throw Refused{kWrongScalar};
}

}  // namespace

#define MHC_TENSORS int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *, void *

MHC_EXPORT int MhcPre(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {11, 12});
    const bool with_gamma = nparam == 12;
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(0, false);
    const int64_t n = tensors.sizes.streams, d = tensors.sizes.hidden, f = n * n + 2 * n;
    mhc::PreForward a{};
    a.element = tensors.element;
    a.sizes = tensors.sizes;
    a.x = tensors.like_x({n, d});
    a.phi = tensors.parameter({f, n * d});
    a.alpha = tensors.parameter({3});
    a.bias = tensors.parameter({f});
    a.gamma = with_gamma ? tensors.parameter({n, d}) : nullptr;
    const float *scalars = tensors.parameter({2});
    a.norm_eps = scalars[0];
    a.hc_eps = scalars[1];
    a.h_in = tensors.like_x({d});
    a.h_post = tensors.per_token({n});
    a.h_res = tensors.per_token({n, n});
    a.inv_rms = tensors.per_token({});
    a.h_mix = tensors.per_token({f});
    a.h_pre = tensors.per_token({n});
    mhc::pre_forward(a);
  });
}

MHC_EXPORT int MhcPreBackward(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {15, 16, 17, 18});
    const bool with_gamma = nparam >= 17, with_grad_x_post = nparam % 2 == 0;
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(0, false);
    const int64_t n = tensors.sizes.streams, d = tensors.sizes.hidden, f = n * n + 2 * n;
    mhc::PreBackward a{};
    a.element = tensors.element;
    a.sizes = tensors.sizes;
    a.x = tensors.like_x({n, d});
    a.phi = tensors.parameter({f, n * d});
    a.alpha = tensors.parameter({3});
    a.grad_h_in = tensors.like_x({d});
    a.grad_h_post = tensors.per_token({n});
    a.grad_h_res = tensors.per_token({n, n});
    a.inv_rms = tensors.per_token({});
    a.h_mix = tensors.per_token({f});
    a.h_pre = tensors.per_token({n});
    a.h_post = tensors.per_token({n});
    a.gamma = with_gamma ? tensors.parameter({n, d}) : nullptr;
    a.grad_x_post = with_grad_x_post ? tensors.like_x({n, d}) : nullptr;
    a.hc_eps = tensors.parameter({1})[0];
    a.grad_x = tensors.like_x({n, d});
    a.grad_phi = tensors.parameter({f, n * d});
    a.grad_alpha = tensors.parameter({3});
    a.grad_bias = tensors.parameter({f});
    a.grad_gamma = with_gamma ? tensors.parameter({n, d}) : nullptr;
    mhc::pre_backward(a);
  });
}

MHC_EXPORT int MhcPost(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {4, 5});
    const bool with_h_res = nparam == 5;
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(0, false);
    const int64_t n = tensors.sizes.streams, d = tensors.sizes.hidden;
    mhc::PostForward a{};
    a.element = tensors.element;
    a.sizes = tensors.sizes;
    a.x = tensors.like_x({n, d});
    a.h_res = with_h_res ? tensors.per_token({n, n}) : nullptr;
    a.h_out = tensors.like_x({d});
    a.h_post = tensors.per_token({n});
    a.out = tensors.like_x({n, d});
    mhc::post_forward(a);
  });
}

MHC_EXPORT int MhcPostBackward(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {8, 9});
    const bool with_h_res = nparam == 9;
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(1, false);
    const int64_t n = tensors.sizes.streams, d = tensors.sizes.hidden;
    mhc::PostBackward a{};
    a.element = tensors.element;
    a.sizes = tensors.sizes;
    a.grad_output = tensors.like_x({n, d});
    a.x = tensors.like_x({n, d});
    a.h_res = with_h_res ? tensors.per_token({n, n}) : nullptr;
    a.h_out = tensors.like_x({d});
    a.h_post = tensors.per_token({n});
    a.grad_x = tensors.like_x({n, d});
    a.grad_h_res = tensors.per_token({n, n});
    a.grad_h_out = tensors.like_x({d});
    a.grad_h_post = tensors.per_token({n});
    mhc::post_backward(a);
  });
}

MHC_EXPORT int MhcSinkhorn(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {3});
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(0, true);
    const int64_t n = tensors.sizes.streams;
    mhc::SinkhornForward a{};
    a.sizes = tensors.sizes;
    a.x = tensors.per_token({n, n});
    read_sinkhorn_scalars(tensors.parameter({3}), &a);
    a.output = tensors.per_token({n, n});
    mhc::sinkhorn_forward(a);
  });
}

MHC_EXPORT int MhcSinkhornBackward(MHC_TENSORS) {
  return guarded([=] {
    require_count(nparam, {4});
    Tensors tensors(nparam, params, ndims, shapes, dtypes);
    tensors.measure(1, true);
    const int64_t n = tensors.sizes.streams;
    mhc::SinkhornBackward a{};
    a.sizes = tensors.sizes;
    a.grad_output = tensors.per_token({n, n});
    a.x = tensors.per_token({n, n});
    read_sinkhorn_scalars(tensors.parameter({3}), &a);
    a.grad_x = tensors.per_token({n, n});
    mhc::sinkhorn_backward(a);
  });
}
