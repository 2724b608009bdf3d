#include "mhc/products.h"

#include <algorithm>
#include <cmath>

#include "framework/floats.h"
#include "framework/parallel.h"

namespace host {
namespace {

using Numbers = std::vector<float>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Numbers factors(const float *values, std::int64_t count, bool hf32) {
  Numbers result(values, values + count);
  if (hf32) std::transform(result.begin(), result.end(), result.begin(), to_hf32);
  return result;
}

// x ⊙ gamma as a factor of a product.
Numbers scaled(const Numbers &x, const float *gamma, bool hf32) {
  Numbers result = x;
  for (std::size_t k = 0; gamma != nullptr && k < x.size(); ++k) result[k] *= gamma[k];
  return factors(result.data(), static_cast<std::int64_t>(result.size()), hf32);
}

double dot(const float *a, const float *b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

float sigmoid(float z) { return 1.0F / (1.0F + std::exp(-z)); }

// Which of alpha's three elements belongs to a row of phi.
std::int64_t gate_of(std::int64_t row, std::int64_t streams) { return std::min<std::int64_t>(row / streams, 2); }

}  // namespace

float to_hf32(float value) {
  if (!std::isfinite(value)) return value;
  return bit_cast<float>(((bit_cast<std::uint32_t>(value) >> 12) + 1) >> 1 << 13);
}

Numbers read(const void *array, mhc::Element element, std::int64_t first, std::int64_t count) {
  Numbers result(index(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (element == mhc::Element::kBFloat16) {
      result[index(i)] = to_float(static_cast<const BFloat16 *>(array)[first + i]);
    } else {
      result[index(i)] = to_float(static_cast<const Half *>(array)[first + i]);
    }
  }
  return result;
}

void write(float value, void *array, mhc::Element element, std::int64_t at) {
  if (element == mhc::Element::kBFloat16) {
    static_cast<BFloat16 *>(array)[at] = to_bfloat16(value);
  } else {
    static_cast<Half *>(array)[at] = to_half(value);
  }
}

void pre_forward(const mhc::PreForward &args, PreForm form) {
  const auto [tokens, n, d] = args.sizes;
  const std::int64_t streams = n, hidden = d, width = n * d, rows = form.two_gates ? 2 * n : mhc::num_gates(n);
  const Numbers phi = factors(args.phi, rows * width, form.hf32);
  parallel_for(tokens, true, [&](std::int64_t t) {
    const Numbers x = read(args.x, args.element, t * width, width), factor = scaled(x, args.gamma, form.hf32);
    const double square = dot(x.data(), x.data(), width) / static_cast<double>(width);
    const auto inv_rms = static_cast<float>(1 / std::sqrt(square + static_cast<double>(args.norm_eps)));
    if (args.inv_rms != nullptr) args.inv_rms[t] = inv_rms;
    Numbers h_pre(index(streams));
    for (std::int64_t f = 0; f < rows; ++f) {
      const auto mix = static_cast<float>(dot(factor.data(), phi.data() + f * width, width));
      if (args.h_mix != nullptr) args.h_mix[t * rows + f] = mix;
      const std::int64_t gate = gate_of(f, streams);
      const float z = mix * inv_rms * args.alpha[gate] + args.bias[f];
      if (gate == 0) h_pre[index(f)] = sigmoid(z) + args.hc_eps;
      if (gate == 1) args.h_post[t * streams + f - streams] = 2 * sigmoid(z) + (form.two_gates ? args.hc_eps : 0);
      if (gate == 2) args.h_res[t * streams * streams + f - 2 * streams] = z;
    }
    if (args.h_pre != nullptr) std::copy(h_pre.begin(), h_pre.end(), args.h_pre + t * streams);
    for (std::int64_t k = 0; k < hidden; ++k) {
      float sum = 0;
      for (std::int64_t i = 0; i < streams; ++i) sum += h_pre[index(i)] * x[index(i * hidden + k)];
      write(sum, args.h_in, args.element, t * hidden + k);
    }
  });
}

Numbers gradients_of_arguments(const mhc::PreBackward &args) {
  const auto [tokens, n, d] = args.sizes;
  const std::int64_t streams = n, hidden = d, rows = mhc::num_gates(n);
  Numbers result(index(tokens * rows));
  parallel_for(tokens, true, [&](std::int64_t t) {
    const Numbers x = read(args.x, args.element, t * streams * hidden, streams * hidden);
    const Numbers grad_h_in = read(args.grad_h_in, args.element, t * hidden, hidden);
    float *grad = result.data() + t * rows;
    for (std::int64_t i = 0; i < streams; ++i) {
      const float s = args.h_pre[t * streams + i] - args.hc_eps, h_post = args.h_post[t * streams + i];
      grad[i] = static_cast<float>(dot(grad_h_in.data(), x.data() + i * hidden, hidden)) * s * (1 - s);
      grad[streams + i] = args.grad_h_post[t * streams + i] * h_post * (1 - h_post / 2);
    }
    std::copy_n(args.grad_h_res + t * streams * streams, streams * streams, grad + 2 * streams);
  });
  return result;
}

void pre_backward(const mhc::PreBackward &args, const Numbers &grad_arguments, bool hf32) {
  const auto [tokens, n, d] = args.sizes;
  const std::int64_t all = tokens, streams = n, hidden = d, width = n * d, rows = mhc::num_gates(n);
  const Numbers phi = factors(args.phi, rows * width, hf32);
  Numbers grad_mix(index(all * rows)), factor(index(all * width)), product(args.gamma ? index(all * width) : 0);
  parallel_for(all, true, [&](std::int64_t t) {
    const Numbers x = read(args.x, args.element, t * width, width), own = scaled(x, args.gamma, hf32);
    std::copy(own.begin(), own.end(), factor.begin() + t * width);
    const float inv_rms = args.inv_rms[t];
    double grad_inv_rms = 0;
    std::vector<double> m(index(width));
    for (std::int64_t f = 0; f < rows; ++f) {
      const float grad = grad_arguments[index(t * rows + f)] * args.alpha[gate_of(f, streams)];
      grad_inv_rms += static_cast<double>(grad) * static_cast<double>(args.h_mix[t * rows + f]);
      float &mixed = grad_mix[index(t * rows + f)];
      mixed = hf32 ? to_hf32(grad * inv_rms) : grad * inv_rms;
      for (std::int64_t k = 0; k < width; ++k) {
        m[index(k)] += static_cast<double>(mixed) * static_cast<double>(phi[index(f * width + k)]);
      }
    }
    const float share = inv_rms * inv_rms * inv_rms * static_cast<float>(grad_inv_rms) * (-1.0F / static_cast<float>(width));
    const Numbers grad_h_in = read(args.grad_h_in, args.element, t * hidden, hidden);
    const Numbers rest = args.grad_x_post ? read(args.grad_x_post, args.element, t * width, width) : Numbers(index(width));
    for (std::int64_t k = 0; k < width; ++k) {
      const auto of_product = static_cast<float>(m[index(k)]);
      if (args.gamma != nullptr) product[index(t * width + k)] = of_product;
      float grad = grad_h_in[index(k % hidden)] * args.h_pre[t * streams + k / hidden] + x[index(k)] * share;
      grad += (args.gamma != nullptr ? args.gamma[k] : 1.0F) * of_product;
      write(grad + rest[index(k)], args.grad_x, args.element, t * width + k);
    }
  });
  parallel_for(rows, true, [&](std::int64_t f) {
    std::vector<double> sum(index(width));
    double bias = 0;
    for (std::int64_t t = 0; t < all; ++t) {
      bias += static_cast<double>(grad_arguments[index(t * rows + f)]);
      const auto mixed = static_cast<double>(grad_mix[index(t * rows + f)]);
      for (std::int64_t k = 0; k < width; ++k) sum[index(k)] += mixed * static_cast<double>(factor[index(t * width + k)]);
    }
    args.grad_bias[f] = static_cast<float>(bias);
    std::transform(sum.begin(), sum.end(), args.grad_phi + f * width, [](double s) { return static_cast<float>(s); });
  });
  double grad_alpha[3] = {};
  for (std::int64_t i = 0; i < all * rows; ++i) {
    const float u = args.h_mix[i] * args.inv_rms[i / rows];
    grad_alpha[gate_of(i % rows, streams)] += static_cast<double>(grad_arguments[index(i)]) * static_cast<double>(u);
  }
  std::transform(grad_alpha, grad_alpha + 3, args.grad_alpha, [](double sum) { return static_cast<float>(sum); });
  if (args.gamma == nullptr) return;
  std::vector<double> sum(index(width));
  for (std::int64_t t = 0; t < all; ++t) {
    const Numbers x = read(args.x, args.element, t * width, width);
    for (std::int64_t k = 0; k < width; ++k) {
      sum[index(k)] += static_cast<double>(x[index(k)]) * static_cast<double>(product[index(t * width + k)]);
    }
  }
  std::transform(sum.begin(), sum.end(), args.grad_gamma, [](double s) { return static_cast<float>(s); });
}

}  // namespace host
