// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "element.h"
#include "mhc.h"

namespace mhc {
namespace {

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

template <typename Scalar>
void forward(const PreForward &a) {
  const int64_t n = a.sizes.streams, d = a.sizes.hidden, nd = n * d, f = n * n + 2 * n;
  const Scalar *x_all = static_cast<const Scalar *>(a.x);
  Scalar *h_in_all = static_cast<Scalar *>(a.h_in);
#pragma omp parallel for
  for (int64_t t = 0; t < a.sizes.tokens; ++t) {
    const Scalar *x = x_all + t * nd;
    double squares = 0;
    for (int64_t c = 0; c < nd; ++c) squares += static_cast<double>(to_float(x[c])) * static_cast<double>(to_float(x[c]));
    const double inv = 1.0 / std::sqrt(squares / static_cast<double>(nd) + static_cast<double>(a.norm_eps));
    if (a.inv_rms) a.inv_rms[t] = static_cast<float>(inv);
    std::vector<double> h_pre(static_cast<size_t>(n));
    for (int64_t k = 0; k < f; ++k) {
      double mix = 0;
      for (int64_t c = 0; c < nd; ++c)
        mix += static_cast<double>(to_float(x[c])) * static_cast<double>(a.gamma ? a.gamma[c] : 1.0f) * static_cast<double>(a.phi[k * nd + c]);
      if (a.h_mix) a.h_mix[t * f + k] = static_cast<float>(mix);
      const double z = mix * inv * static_cast<double>(a.alpha[k < n ? 0 : k < 2 * n ? 1 : 2]) + static_cast<double>(a.bias[k]);
      if (k < n) {
        h_pre[static_cast<size_t>(k)] = sigmoid(z) + static_cast<double>(a.hc_eps);
        if (a.h_pre) a.h_pre[t * n + k] = static_cast<float>(h_pre[static_cast<size_t>(k)]);
      } else if (k < 2 * n) {
        a.h_post[t * n + k - n] = static_cast<float>(2 * sigmoid(z));
      } else {
        a.h_res[t * n * n + k - 2 * n] = static_cast<float>(z);
      }
    }
    for (int64_t j = 0; j < d; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += h_pre[static_cast<size_t>(i)] * static_cast<double>(to_float(x[i * d + j]));
      h_in_all[t * d + j] = from_float<Scalar>(static_cast<float>(sum));
    }
  }
}

template <typename Scalar>
void backward(const PreBackward &a) {
  const int64_t n = a.sizes.streams, d = a.sizes.hidden, nd = n * d, f = n * n + 2 * n, tokens = a.sizes.tokens;
  const Scalar *x_all = static_cast<const Scalar *>(a.x);
  const Scalar *grad_h_in_all = static_cast<const Scalar *>(a.grad_h_in);
  const Scalar *grad_x_post = static_cast<const Scalar *>(a.grad_x_post);
  Scalar *grad_x = static_cast<Scalar *>(a.grad_x);
  std::vector<double> grad_mix(static_cast<size_t>(tokens * f)), gates(static_cast<size_t>(tokens * f));
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const Scalar *x = x_all + t * nd;
    const Scalar *grad_h_in = grad_h_in_all + t * d;
    const double inv = static_cast<double>(a.inv_rms[t]);
    double grad_inv = 0;
    for (int64_t k = 0; k < f; ++k) {
      double gate;
      if (k < n) {
        double grad = 0;
        for (int64_t j = 0; j < d; ++j) grad += static_cast<double>(to_float(grad_h_in[j])) * static_cast<double>(to_float(x[k * d + j]));
        const double s = static_cast<double>(a.h_pre[t * n + k]) - static_cast<double>(a.hc_eps);
        gate = grad * s * (1 - s);
      } else if (k < 2 * n) {
        const double h = static_cast<double>(a.h_post[t * n + k - n]);
        gate = static_cast<double>(a.grad_h_post[t * n + k - n]) * h * (1 - h / 2);
      } else {
        gate = static_cast<double>(a.grad_h_res[t * n * n + k - 2 * n]);
      }
      gates[static_cast<size_t>(t * f + k)] = gate;
      const double scaled = gate * static_cast<double>(a.alpha[k < n ? 0 : k < 2 * n ? 1 : 2]);
      grad_inv += scaled * static_cast<double>(a.h_mix[t * f + k]);
      grad_mix[static_cast<size_t>(t * f + k)] = scaled * inv;
    }
    const double of_x = -grad_inv * inv * inv * inv / static_cast<double>(nd);
    for (int64_t c = 0; c < nd; ++c) {
      double m = 0;
      for (int64_t k = 0; k < f; ++k) m += grad_mix[static_cast<size_t>(t * f + k)] * static_cast<double>(a.phi[k * nd + c]);
      if (a.gamma) m *= static_cast<double>(a.gamma[c]);
      double grad = static_cast<double>(to_float(grad_h_in[c % d])) * static_cast<double>(a.h_pre[t * n + c / d]) + of_x * static_cast<double>(to_float(x[c])) + m;
      if (grad_x_post) grad += static_cast<double>(to_float(grad_x_post[t * nd + c]));
      grad_x[t * nd + c] = from_float<Scalar>(static_cast<float>(grad));
    }
  }
  double grad_alpha[3] = {0, 0, 0};
  for (int64_t k = 0; k < f; ++k) {
    double bias = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const double gate = gates[static_cast<size_t>(t * f + k)];
      bias += gate;
      grad_alpha[k < n ? 0 : k < 2 * n ? 1 : 2] += gate * static_cast<double>(a.h_mix[t * f + k]) * static_cast<double>(a.inv_rms[t]);
    }
    a.grad_bias[k] = static_cast<float>(bias);
  }
  for (int i = 0; i < 3; ++i) a.grad_alpha[i] = static_cast<float>(grad_alpha[i]);
#pragma omp parallel for
  for (int64_t c = 0; c < nd; ++c) {
    double grad_gamma = 0;
    for (int64_t k = 0; k < f; ++k) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum += grad_mix[static_cast<size_t>(t * f + k)] * static_cast<double>(to_float(x_all[t * nd + c]));
      grad_gamma += sum * static_cast<double>(a.phi[k * nd + c]);
      a.grad_phi[k * nd + c] = static_cast<float>(a.gamma ? sum * static_cast<double>(a.gamma[c]) : sum);
    }
    if (a.grad_gamma) a.grad_gamma[c] = static_cast<float>(grad_gamma);
  }
}

}  // namespace

void pre_forward(const PreForward &args) {
  switch (args.element) {
    case Element::kFloat32: return forward<float>(args);
    case Element::kFloat16: return forward<Half>(args);
    case Element::kBFloat16: return forward<BFloat16>(args);
  }
}

void pre_backward(const PreBackward &args) {
  switch (args.element) {
    case Element::kFloat32: return backward<float>(args);
    case Element::kFloat16: return backward<Half>(args);
    case Element::kBFloat16: return backward<BFloat16>(args);
  }
}

}  // namespace mhc
