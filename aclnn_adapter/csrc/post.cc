// SPDX-License-Identifier: Apache-2.0
#include "element.h"
#include "mhc.h"

namespace mhc {
namespace {

double coefficient(const float *h_res, int64_t n, int64_t t, int64_t i, int64_t j) {
  return h_res ? static_cast<double>(h_res[(t * n + i) * n + j]) : i == j ? 1.0 : 0.0;
}

template <typename Scalar>
void forward(const PostForward &a) {
  const int64_t n = a.sizes.streams, d = a.sizes.hidden;
  const Scalar *x = static_cast<const Scalar *>(a.x);
  const Scalar *h_out = static_cast<const Scalar *>(a.h_out);
  Scalar *out = static_cast<Scalar *>(a.out);
#pragma omp parallel for
  for (int64_t t = 0; t < a.sizes.tokens; ++t)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t c = 0; c < d; ++c) {
        double sum = static_cast<double>(a.h_post[t * n + j]) * static_cast<double>(to_float(h_out[t * d + c]));
        for (int64_t i = 0; i < n; ++i)
          if (a.h_res || i == j) sum += coefficient(a.h_res, n, t, i, j) * static_cast<double>(to_float(x[(t * n + i) * d + c]));
        out[(t * n + j) * d + c] = from_float<Scalar>(static_cast<float>(sum));
      }
}

template <typename Scalar>
void backward(const PostBackward &a) {
  const int64_t n = a.sizes.streams, d = a.sizes.hidden;
  const Scalar *x_all = static_cast<const Scalar *>(a.x);
  const Scalar *h_out_all = static_cast<const Scalar *>(a.h_out);
  const Scalar *grad_all = static_cast<const Scalar *>(a.grad_output);
  Scalar *grad_x = static_cast<Scalar *>(a.grad_x);
  Scalar *grad_h_out = static_cast<Scalar *>(a.grad_h_out);
#pragma omp parallel for
  for (int64_t t = 0; t < a.sizes.tokens; ++t) {
    const Scalar *x = x_all + t * n * d, *grad = grad_all + t * n * d, *h_out = h_out_all + t * d;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j)
          if (a.h_res || i == j) sum += coefficient(a.h_res, n, t, i, j) * static_cast<double>(to_float(grad[j * d + c]));
        grad_x[(t * n + i) * d + c] = from_float<Scalar>(static_cast<float>(sum));
      }
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(a.h_post[t * n + j]) * static_cast<double>(to_float(grad[j * d + c]));
      grad_h_out[t * d + c] = from_float<Scalar>(static_cast<float>(sum));
    }
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += static_cast<double>(to_float(grad[j * d + c])) * static_cast<double>(to_float(h_out[c]));
      a.grad_h_post[t * n + j] = static_cast<float>(sum);
    }
    if (a.grad_h_res)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t c = 0; c < d; ++c) sum += static_cast<double>(to_float(x[i * d + c])) * static_cast<double>(to_float(grad[j * d + c]));
          a.grad_h_res[(t * n + i) * n + j] = static_cast<float>(sum);
        }
  }
}

}  // namespace

void post_forward(const PostForward &args) {
  switch (args.element) {
    case Element::kFloat32: return forward<float>(args);
    case Element::kFloat16: return forward<Half>(args);
    case Element::kBFloat16: return forward<BFloat16>(args);
  }
}

void post_backward(const PostBackward &args) {
  switch (args.element) {
    case Element::kFloat32: return backward<float>(args);
    case Element::kFloat16: return backward<Half>(args);
    case Element::kBFloat16: return backward<BFloat16>(args);
  }
}

}  // namespace mhc
