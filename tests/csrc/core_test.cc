// SPDX-License-Identifier: Apache-2.0
// The C++ core against the operators' formulas in double precision, written out once more here without a thought of
// speed. Prints what fails, and returns the number of failures (at most 100). run.py builds and runs it.
//
//   core_test ISA [--small]    returns 101 if this machine has no such instruction set; --small for slow tools
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "mhc.h"
#include "threads.h"

extern "C" const char *MhcIsa();
extern "C" const char *MhcIsaNames();

namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

int failures = 0;

void fail(const std::string &what) {
  std::printf("FAILED %s\n", what.c_str());
  ++failures;
}

size_t size(int64_t n) { return static_cast<size_t>(n); }

// ---- the element types, by searching for the nearest number ----

double computed_half_value(int bits, int mantissa_bits, int bias) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1), exponent = (bits & 0x7fff) >> mantissa_bits;
  const int highest = (1 << (15 - mantissa_bits)) - 1;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == highest) return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Type {
  mhc::Element element;
  const char *name;
  int mantissa_bits, bias;  // of the 16-bit types
};

const Type kTypes[] = {{mhc::Element::kFloat32, "fp32", 0, 0},
                       {mhc::Element::kFloat16, "fp16", 10, 15},
                       {mhc::Element::kBFloat16, "bf16", 7, 127}};

Doubles all_half_values(const Type &type) {
  Doubles values;
  for (int bits = 0; bits < 1 << 16; ++bits) values.push_back(computed_half_value(bits, type.mantissa_bits, type.bias));
  return values;
}

double half_value(uint16_t bits, const Type &type) {
  static const Doubles fp16 = all_half_values(kTypes[1]), bf16 = all_half_values(kTypes[2]);
  return (type.element == mhc::Element::kFloat16 ? fp16 : bf16)[bits];
}

uint16_t nearest_bits(const Type &type, double value) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const uint16_t infinity = static_cast<uint16_t>(0x7fff & ~((1 << type.mantissa_bits) - 1));
  uint16_t low = 0, high = static_cast<uint16_t>(infinity - 1);  // the largest number not above the magnitude
  while (low < high) {
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (half_value(middle, type) <= magnitude) low = middle;
    else high = static_cast<uint16_t>(middle - 1);
  }
  const double below = half_value(low, type);
  const double spacing = low + 1 == infinity ? below - half_value(static_cast<uint16_t>(low - 1), type)
                                             : half_value(static_cast<uint16_t>(low + 1), type) - below;
  const double twice = 2 * (magnitude - below);
  const bool up = twice > spacing || (twice == spacing && low % 2 == 1);
  return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
}

// A tensor of some element type, on whole cache lines, or `shift` elements beyond them.
class Tensor {
 public:
  Tensor(const Type &type, int64_t count, int64_t shift = 0)
      : type_(type), count_(count), width_(type.mantissa_bits ? 2 : 4), memory_(size((count + shift) * width_ / 64 + 1)), shift_(shift) {}

  Tensor(const Type &type, const Doubles &values, int64_t shift = 0)
      : Tensor(type, static_cast<int64_t>(values.size()), shift) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[size(i)]);
  }

  void *data() { return at(0); }

  void set(int64_t i, double value) {
    if (width_ == 4) {
      const float number = static_cast<float>(value);
      std::memcpy(at(i), &number, 4);
    } else {
      const uint16_t bits = nearest_bits(type_, value);
      std::memcpy(at(i), &bits, 2);
    }
  }

  double get(int64_t i) const {
    if (width_ == 4) {
      float number;
      std::memcpy(&number, at(i), 4);
      return static_cast<double>(number);
    }
    uint16_t bits;
    std::memcpy(&bits, at(i), 2);
    return half_value(bits, type_);
  }

  Doubles values() const {
    Doubles all(size(count_));
    for (int64_t i = 0; i < count_; ++i) all[size(i)] = get(i);
    return all;
  }

  bool same_bits(const Tensor &other) const {
    return std::memcmp(at(0), other.at(0), size(count_ * width_)) == 0;
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  unsigned char *at(int64_t i) { return memory_.data()->bytes + (i + shift_) * width_; }
  const unsigned char *at(int64_t i) const { return memory_.data()->bytes + (i + shift_) * width_; }

  Type type_;
  int64_t count_, width_;
  std::vector<Line> memory_;
  int64_t shift_;
};

// ---- comparing ----

// fp32 within 2e-6 of the largest entry, or of `scale` if that is more: of a sum whose terms cancel. 16 bits: as a 16-bit number within one unit in the last place of the rounded
// expectation, where a unit is at least what fp32 arithmetic resolves beside the largest entry.
void compare(const std::string &what, const Type &type, const Doubles &found, const Doubles &expected, double scale = 0) {
  double largest = scale, worst = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) != std::isnan(found[i])) return fail(what + ": NaN in the wrong place");
    if (std::isnan(expected[i])) continue;
    double allowed = 2e-6 * largest;
    double target = expected[i];
    if (type.mantissa_bits) {
      target = half_value(nearest_bits(type, expected[i]), type);
      const int exponent = std::max(std::ilogb(std::max(std::fabs(target), 1e-300)), 1 - type.bias);
      allowed = std::max(std::ldexp(1.0, exponent - type.mantissa_bits), 2e-6 * largest);
    }
    if (target != found[i]) worst = std::max(worst, std::fabs(found[i] - target) / allowed);
  }
  if (!(worst <= 1.0)) fail(what + ": error is " + std::to_string(worst) + " times what is allowed");
}

const Type &kFp32 = kTypes[0];

Doubles widened(const Floats &values) { return Doubles(values.begin(), values.end()); }

std::mt19937_64 generator(1);

Doubles random(int64_t count, double scale = 1.0, double shift = 0.0) {
  std::normal_distribution<double> normal;
  Doubles values(size(count));
  for (double &value : values) value = shift + scale * normal(generator);
  return values;
}

Floats random_floats(int64_t count, double scale = 1.0, double shift = 0.0) {
  const Doubles values = random(count, scale, shift);
  Floats floats(values.size());
  std::transform(values.begin(), values.end(), floats.begin(), [](double value) { return static_cast<float>(value); });
  return floats;
}

// ---- Sinkhorn in plain formulas ----

struct Steps {
  float eps;
  int64_t num_iters;
  mhc::Recipe recipe;
};

// Column of the first largest entry of each row. The paper's recipe subtracts that one, and with eps it matters which.
std::vector<int64_t> first_largest(const Doubles &x, int64_t n) {
  std::vector<int64_t> columns;
  for (auto row = x.begin(); row != x.end(); row += n) columns.push_back(std::max_element(row, row + n) - row);
  return columns;
}

Doubles sinkhorn(const Doubles &x, int64_t n, const Steps &steps, const std::vector<int64_t> &largest) {
  const double eps = static_cast<double>(steps.eps);
  Doubles y(size(n * n));
  for (int64_t i = 0; i < n; ++i) {
    const double top = x[size(i * n + largest[size(i)])];
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += y[size(i * n + j)] = std::exp(x[size(i * n + j)] - top);
    if (steps.recipe == mhc::Recipe::kDeepSeekV4) {
      for (int64_t j = 0; j < n; ++j) y[size(i * n + j)] = y[size(i * n + j)] / sum + eps;
    }
  }
  const auto divide = [&](int64_t line_step, int64_t step) {
    for (int64_t line = 0; line < n; ++line) {
      double sum = eps;
      for (int64_t k = 0; k < n; ++k) sum += y[size(line * line_step + k * step)];
      for (int64_t k = 0; k < n; ++k) y[size(line * line_step + k * step)] /= sum;
    }
  };
  for (int64_t iteration = 0; iteration < steps.num_iters; ++iteration) {
    if (iteration > 0 || steps.recipe == mhc::Recipe::kPaper) divide(n, 1);
    divide(1, n);
  }
  return y;
}

Doubles sinkhorn(const Doubles &x, int64_t n, const Steps &steps) { return sinkhorn(x, n, steps, first_largest(x, n)); }

// The slope of sum(grad * sinkhorn(x)) along a direction, by a five-point difference. The largest entries stay the same:
// where two of them are nearly equal, a step would change their order.
double sinkhorn_slope(const Doubles &x, int64_t n, const Steps &steps, const Doubles &grad, const Doubles &direction) {
  const std::vector<int64_t> largest = first_largest(x, n);
  const auto objective = [&](double step) {
    Doubles moved = x;
    for (size_t k = 0; k < moved.size(); ++k) moved[k] += step * direction[k];
    const Doubles result = sinkhorn(moved, n, steps, largest);
    double sum = 0;
    for (size_t k = 0; k < moved.size(); ++k) sum += result[k] * grad[k];
    return sum;
  };
  const double h = 1e-4;
  return (8 * (objective(h) - objective(-h)) - (objective(2 * h) - objective(-2 * h))) / (12 * h);
}

// ---- MhcPre ----

struct Shape {
  int64_t t, n, d;
};

std::string name_of(const char *operator_name, const Type &type, const Shape &s) {
  return std::string(operator_name) + " " + type.name + " T=" + std::to_string(s.t) + " N=" + std::to_string(s.n) +
         " D=" + std::to_string(s.d);
}

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

constexpr float kNormEps = 1e-3f, kHcEps = 1e-2f;

// With steps, MhcPreSinkhorn: h_res and its gradient are those of the mixed matrices.
void test_pre(const Type &type, const Shape &s, bool with_gamma, bool with_post, int64_t shift, const Steps *steps = nullptr) {
  const int64_t n = s.n, d = s.d, nd = n * d, f = n * n + 2 * n, t_count = s.t;
  const std::string name = name_of(steps ? "pre_sinkhorn" : "pre", type, s) + (with_gamma ? " gamma" : "") + (with_post ? " post" : "");
  Tensor x(type, random(t_count * nd), shift);
  const Floats phi = random_floats(f * nd, 1.0 / std::sqrt(static_cast<double>(nd))), alpha = random_floats(3), bias = random_floats(f);
  const Floats gamma = random_floats(nd, 1.0, 1.0);
  const auto scale = [&](int64_t c) { return with_gamma ? static_cast<double>(gamma[size(c)]) : 1.0; };

  Tensor h_in(type, t_count * d, shift);
  Floats h_post(size(t_count * n)), h_res(size(t_count * n * n)), inv_rms(size(t_count)), h_mix(size(t_count * f)), h_pre(size(t_count * n));
  mhc::PreForward forward{};
  forward.element = type.element;
  forward.sizes = {t_count, n, d};
  forward.x = x.data();
  forward.phi = phi.data();
  forward.alpha = alpha.data();
  forward.bias = bias.data();
  forward.gamma = with_gamma ? gamma.data() : nullptr;
  forward.norm_eps = kNormEps;
  forward.hc_eps = kHcEps;
  forward.h_in = h_in.data();
  forward.h_post = h_post.data();
  forward.h_res = h_res.data();
  forward.inv_rms = inv_rms.data();
  forward.h_mix = h_mix.data();
  forward.h_pre = h_pre.data();
  const auto compute = [&](const mhc::PreForward &args) {
    if (steps) mhc::pre_sinkhorn_forward({args, steps->eps, steps->num_iters, steps->recipe});
    else mhc::pre_forward(args);
  };
  compute(forward);

  Doubles e_h_in(size(t_count * d)), e_h_post(h_post.size()), e_h_res(h_res.size()), e_inv_rms(inv_rms.size()), e_h_mix(h_mix.size()), e_h_pre(h_pre.size());
  const auto part = [&](int64_t k) { return k < n ? 0 : k < 2 * n ? 1 : 2; };
  const Doubles x_values = x.values();
  const auto x_at = [&](int64_t t, int64_t c) { return x_values[size(t * nd + c)]; };
  for (int64_t t = 0; t < t_count; ++t) {
    double square = 0;
    for (int64_t c = 0; c < nd; ++c) square += x_at(t, c) * x_at(t, c);
    const double inv = 1.0 / std::sqrt(square / static_cast<double>(nd) + static_cast<double>(kNormEps));
    e_inv_rms[size(t)] = inv;
    for (int64_t k = 0; k < f; ++k) {
      double mix = 0;
      for (int64_t c = 0; c < nd; ++c) mix += x_at(t, c) * scale(c) * static_cast<double>(phi[size(k * nd + c)]);
      e_h_mix[size(t * f + k)] = mix;
      const double z = static_cast<double>(alpha[size(part(k))]) * mix * inv + static_cast<double>(bias[size(k)]);
      if (part(k) == 0) e_h_pre[size(t * n + k)] = sigmoid(z) + static_cast<double>(kHcEps);
      if (part(k) == 1) e_h_post[size(t * n + k - n)] = 2 * sigmoid(z);
      if (part(k) == 2) e_h_res[size(t * n * n + k - 2 * n)] = z;
    }
    if (steps) {
      const auto begin = e_h_res.begin() + t * n * n;
      const Doubles mixed = sinkhorn(Doubles(begin, begin + n * n), n, *steps);
      std::copy(mixed.begin(), mixed.end(), begin);
    }
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t i = 0; i < n; ++i) e_h_in[size(t * d + c)] += e_h_pre[size(t * n + i)] * x_at(t, i * d + c);
    }
  }
  compare(name + " h_in", type, h_in.values(), e_h_in);
  compare(name + " h_post", kFp32, widened(h_post), e_h_post);
  compare(name + " h_res", kFp32, widened(h_res), e_h_res);
  compare(name + " inv_rms", kFp32, widened(inv_rms), e_inv_rms);
  compare(name + " h_mix", kFp32, widened(h_mix), e_h_mix);
  compare(name + " h_pre", kFp32, widened(h_pre), e_h_pre);

  const Tensor before = h_in;
  forward.inv_rms = forward.h_mix = forward.h_pre = nullptr;
  compute(forward);
  if (!h_in.same_bits(before)) fail(name + ": h_in depends on which outputs are wanted");

  Tensor grad_h_in(type, random(t_count * d), shift), grad_x_post(type, random(t_count * nd), shift), grad_x(type, t_count * nd, shift);
  const Floats grad_h_post = random_floats(t_count * n), grad_h_res = random_floats(t_count * n * n);
  Floats grad_phi(phi.size()), grad_alpha(3), grad_bias(bias.size()), grad_gamma(gamma.size());
  mhc::PreBackward backward{};
  backward.element = type.element;
  backward.sizes = forward.sizes;
  backward.x = x.data();
  backward.phi = phi.data();
  backward.alpha = alpha.data();
  backward.grad_h_in = grad_h_in.data();
  backward.grad_h_post = grad_h_post.data();
  backward.grad_h_res = grad_h_res.data();
  backward.inv_rms = inv_rms.data();
  backward.h_mix = h_mix.data();
  backward.h_pre = h_pre.data();
  backward.h_post = h_post.data();
  backward.gamma = forward.gamma;
  backward.grad_x_post = with_post ? grad_x_post.data() : nullptr;
  backward.hc_eps = kHcEps;
  backward.grad_x = grad_x.data();
  backward.grad_phi = grad_phi.data();
  backward.grad_alpha = grad_alpha.data();
  backward.grad_bias = grad_bias.data();
  backward.grad_gamma = with_gamma ? grad_gamma.data() : nullptr;
  const auto compute_backward = [&](const mhc::PreBackward &args) {
    if (steps) mhc::pre_sinkhorn_backward({args, bias.data(), steps->eps, steps->num_iters, steps->recipe});
    else mhc::pre_backward(args);
  };
  compute_backward(backward);

  Doubles grad_logits = widened(grad_h_res);
  for (int64_t t = 0; steps && t < t_count; ++t) {
    const auto begin = grad_logits.begin() + t * n * n;
    const Doubles grad_mixed(begin, begin + n * n);
    Doubles logits(size(n * n)), direction(size(n * n));
    for (int64_t k = 0; k < n * n; ++k) {
      const double mix = static_cast<double>(h_mix[size(t * f + 2 * n + k)]) * static_cast<double>(inv_rms[size(t)]);
      const double logit = mix * static_cast<double>(alpha[2]) + static_cast<double>(bias[size(2 * n + k)]);
      logits[size(k)] = static_cast<double>(static_cast<float>(logit));  // h_res is fp32
    }
    for (size_t k = 0; k < logits.size(); ++k) {
      direction[k] = 1;
      begin[static_cast<int64_t>(k)] = sinkhorn_slope(logits, n, *steps, grad_mixed, direction);
      direction[k] = 0;
    }
  }
  const Doubles grad_h_in_values = grad_h_in.values();
  Doubles e_x(size(t_count * nd)), e_phi(phi.size()), e_alpha(3), e_bias(bias.size()), e_gamma(gamma.size());
  double alpha_squares = 0;
  for (int64_t t = 0; t < t_count; ++t) {
    const double inv = static_cast<double>(inv_rms[size(t)]);
    Doubles gate(size(f)), grad_mix(size(f));
    double grad_inv = 0;
    for (int64_t k = 0; k < f; ++k) {
      if (part(k) == 0) {
        double grad = 0;
        for (int64_t c = 0; c < d; ++c) grad += grad_h_in_values[size(t * d + c)] * x_at(t, k * d + c);
        const double value = static_cast<double>(h_pre[size(t * n + k)]) - static_cast<double>(kHcEps);
        gate[size(k)] = grad * value * (1 - value);
      } else if (part(k) == 1) {
        const double value = static_cast<double>(h_post[size(t * n + k - n)]);
        gate[size(k)] = static_cast<double>(grad_h_post[size(t * n + k - n)]) * value * (1 - value / 2);
      } else {
        gate[size(k)] = grad_logits[size(t * n * n + k - 2 * n)];
      }
      const double mix = static_cast<double>(h_mix[size(t * f + k)]), a = static_cast<double>(alpha[size(part(k))]);
      e_bias[size(k)] += gate[size(k)];
      e_alpha[size(part(k))] += gate[size(k)] * mix * inv;
      alpha_squares += std::pow(gate[size(k)] * mix * inv, 2);
      grad_inv += gate[size(k)] * a * mix;
      grad_mix[size(k)] = gate[size(k)] * a * inv;
    }
    for (int64_t c = 0; c < nd; ++c) {
      double m = 0;
      for (int64_t k = 0; k < f; ++k) {
        m += grad_mix[size(k)] * static_cast<double>(phi[size(k * nd + c)]);
        e_phi[size(k * nd + c)] += grad_mix[size(k)] * x_at(t, c) * scale(c);
      }
      e_gamma[size(c)] += x_at(t, c) * m;
      double grad = static_cast<double>(h_pre[size(t * n + c / d)]) * grad_h_in_values[size(t * d + c % d)] + m * scale(c);
      grad -= grad_inv * inv * inv * inv / static_cast<double>(nd) * x_at(t, c);
      if (with_post) grad += grad_x_post.get(t * nd + c);
      e_x[size(t * nd + c)] = grad;
    }
  }
  compare(name + " grad_x", type, grad_x.values(), e_x);
  compare(name + " grad_phi", kFp32, widened(grad_phi), e_phi);
  compare(name + " grad_alpha", kFp32, widened(grad_alpha), e_alpha, std::sqrt(alpha_squares));
  compare(name + " grad_bias", kFp32, widened(grad_bias), e_bias);
  if (with_gamma) compare(name + " grad_gamma", kFp32, widened(grad_gamma), e_gamma);

#if defined(_OPENMP)
  const int threads = omp_get_max_threads();
  for (const int other : {1, 2, 3, 5}) {
    omp_set_num_threads(other);
    Floats again_phi(phi.size()), again_alpha(3), again_bias(bias.size()), again_gamma(gamma.size());
    Tensor again_x(type, t_count * nd, shift);
    mhc::PreBackward again = backward;
    again.grad_x = again_x.data();
    again.grad_phi = again_phi.data();
    again.grad_alpha = again_alpha.data();
    again.grad_bias = again_bias.data();
    if (with_gamma) again.grad_gamma = again_gamma.data();
    compute_backward(again);
    if (again_phi != grad_phi || again_alpha != grad_alpha || again_bias != grad_bias ||
        (with_gamma && again_gamma != grad_gamma) || !again_x.same_bits(grad_x)) {
      fail(name + ": other bits with " + std::to_string(other) + " threads");
    }
  }
  omp_set_num_threads(threads);
#endif
}

// A token's results have the same bits alone, among few tokens and among many, wherever it stands, and with any number of
// threads.
void test_pre_does_not_depend_on_the_other_tokens(const Type &type, int64_t n, int64_t d, bool with_gamma) {
  const int64_t most = 130, nd = n * d, f = n * n + 2 * n;
  Tensor x(type, random(most * nd));
  const Floats phi = random_floats(f * nd, 1.0 / std::sqrt(static_cast<double>(nd))), alpha = random_floats(3), bias = random_floats(f);
  const Floats gamma = random_floats(nd, 1.0, 1.0);
  Tensor grad_h_in(type, random(most * d)), grad_x_post(type, random(most * nd));
  const Floats grad_h_post = random_floats(most * n), grad_h_res = random_floats(most * n * n);
  struct Results {
    Tensor h_in, grad_x;
    Floats h_post, h_res, h_mix;
  };
  const auto part_of = [&](Tensor &tensor, int64_t begin, int64_t count, int64_t row) {
    const int64_t width = type.mantissa_bits ? 2 : 4;
    Tensor part(type, count * row);
    std::memcpy(part.data(), static_cast<char *>(tensor.data()) + begin * row * width, size(count * row * width));
    return part;
  };
  const auto run = [&](int64_t begin, int64_t count) {
    Results r{Tensor(type, count * d), Tensor(type, count * nd), Floats(size(count * n)), Floats(size(count * n * n)), Floats(size(count * f))};
    Floats inv_rms(size(count)), h_pre(size(count * n)), grad_phi(phi.size()), grad_alpha(3), grad_bias(bias.size()), grad_gamma(gamma.size());
    Tensor part = part_of(x, begin, count, nd), grad = part_of(grad_h_in, begin, count, d), post = part_of(grad_x_post, begin, count, nd);
    const float *scale = with_gamma ? gamma.data() : nullptr;
    const mhc::Sizes sizes{count, n, d};
    mhc::pre_forward({type.element, sizes, part.data(), phi.data(), alpha.data(), bias.data(), scale, kNormEps, kHcEps,
                      r.h_in.data(), r.h_post.data(), r.h_res.data(), inv_rms.data(), r.h_mix.data(), h_pre.data()});
    mhc::pre_backward({type.element, sizes, part.data(), phi.data(), alpha.data(), grad.data(),
                       grad_h_post.data() + begin * n, grad_h_res.data() + begin * n * n, inv_rms.data(),
                       r.h_mix.data(), h_pre.data(), r.h_post.data(), scale, post.data(), kHcEps, r.grad_x.data(),
                       grad_phi.data(), grad_alpha.data(), grad_bias.data(), with_gamma ? grad_gamma.data() : nullptr});
    return r;
  };
  const Results all = run(0, most);
  const auto expect = [&](int64_t begin, int64_t count) {
    const Results some = run(begin, count);
    const auto same = [&](const Floats &part, const Floats &whole, int64_t row) {
      return std::equal(part.begin(), part.end(), whole.begin() + begin * row);
    };
    bool equal = same(some.h_post, all.h_post, n) && same(some.h_res, all.h_res, n * n) && same(some.h_mix, all.h_mix, f);
    for (int64_t i = 0; i < count * d; ++i) equal &= some.h_in.get(i) == all.h_in.get(begin * d + i);
    for (int64_t i = 0; i < count * nd; ++i) equal &= some.grad_x.get(i) == all.grad_x.get(begin * nd + i);
    if (!equal) {
      fail(name_of("pre", type, {most, n, d}) + (with_gamma ? " gamma" : "") + ": other bits for tokens " + std::to_string(begin) + " to " +
           std::to_string(begin + count));
    }
  };
  for (const int64_t count : {1, 2, 3, 5, 8, 9, 33, 64, 65}) expect(7, count);
  expect(0, 31);
  expect(most - 1, 1);
#if defined(_OPENMP)
  const int threads = omp_get_max_threads();
  for (const int other : {1, 3, 5}) {
    omp_set_num_threads(other);
    for (const int64_t count : {1, 33, 130}) expect(0, count);
  }
  omp_set_num_threads(threads);
#endif
}

// ---- MhcPost ----

void test_post(const Type &type, const Shape &s, bool with_h_res, int64_t shift) {
  const int64_t n = s.n, d = s.d, nd = n * d, t_count = s.t;
  const std::string name = name_of("post", type, s) + (with_h_res ? "" : " identity");
  Tensor x(type, random(t_count * nd), shift), h_out(type, random(t_count * d), shift), out(type, t_count * nd, shift);
  const Floats h_post = random_floats(t_count * n), h_res = random_floats(t_count * n * n);
  const auto res = [&](int64_t t, int64_t i, int64_t j) {
    return with_h_res ? static_cast<double>(h_res[size((t * n + i) * n + j)]) : i == j ? 1.0 : 0.0;
  };
  const mhc::Sizes sizes{t_count, n, d};
  const float *h_res_data = with_h_res ? h_res.data() : nullptr;
  mhc::post_forward({type.element, sizes, x.data(), h_res_data, h_out.data(), h_post.data(), out.data()});

  Tensor grad(type, random(t_count * nd), shift), grad_x(type, t_count * nd, shift), grad_h_out(type, t_count * d, shift);
  Floats grad_h_res(h_res.size()), grad_h_post(h_post.size());
  mhc::PostBackward backward{type.element, sizes, grad.data(), x.data(), h_res_data, h_out.data(), h_post.data(),
                             grad_x.data(), grad_h_res.data(), grad_h_out.data(), grad_h_post.data()};
  mhc::post_backward(backward);

  const Doubles x_values = x.values();
  Doubles e_out(size(t_count * nd)), e_x(e_out), e_h_res(h_res.size()), e_h_out(size(t_count * d)), e_h_post(h_post.size());
  for (int64_t t = 0; t < t_count; ++t) {
    for (int64_t j = 0; j < n; ++j) {
      const double weight = static_cast<double>(h_post[size(t * n + j)]);
      for (int64_t c = 0; c < d; ++c) {
        const double g = grad.get(t * nd + j * d + c), h = h_out.get(t * d + c);
        e_out[size(t * nd + j * d + c)] += weight * h;
        e_h_out[size(t * d + c)] += weight * g;
        e_h_post[size(t * n + j)] += g * h;
        for (int64_t i = 0; i < n; ++i) {
          e_out[size(t * nd + j * d + c)] += res(t, i, j) * x_values[size(t * nd + i * d + c)];
          e_x[size(t * nd + i * d + c)] += res(t, i, j) * g;
          e_h_res[size((t * n + i) * n + j)] += x_values[size(t * nd + i * d + c)] * g;
        }
      }
    }
  }
  compare(name + " out", type, out.values(), e_out);
  compare(name + " grad_x", type, grad_x.values(), e_x);
  compare(name + " grad_h_res", kFp32, widened(grad_h_res), e_h_res);
  compare(name + " grad_h_out", type, grad_h_out.values(), e_h_out);
  compare(name + " grad_h_post", kFp32, widened(grad_h_post), e_h_post);

  std::fill(grad_h_post.begin(), grad_h_post.end(), 0.0f);
  backward.grad_h_res = nullptr;
  mhc::post_backward(backward);
  compare(name + " grad_h_post without grad_h_res", kFp32, widened(grad_h_post), e_h_post);
}

// ---- Sinkhorn ----

void test_sinkhorn(const std::string &name, int64_t n, const Floats &x, const Steps &steps) {
  const int64_t nn = n * n, t_count = static_cast<int64_t>(x.size()) / nn;
  const Floats grad = random_floats(t_count * nn);
  Floats output(x.size()), grad_x(x.size());
  const mhc::Sizes sizes{t_count, n, 0};
  mhc::sinkhorn_forward({sizes, x.data(), steps.eps, steps.num_iters, steps.recipe, output.data()});
  mhc::sinkhorn_backward({sizes, x.data(), grad.data(), steps.eps, steps.num_iters, steps.recipe, grad_x.data()});

  // The gradient is checked along one direction per token.
  Doubles e_output, slope(size(t_count)), e_slope(size(t_count));
  for (int64_t t = 0; t < t_count; ++t) {
    const auto begin = t * nn, end = begin + nn;
    const Doubles here(x.begin() + begin, x.begin() + end), here_grad(grad.begin() + begin, grad.begin() + end);
    const Doubles y = sinkhorn(here, n, steps), direction = random(nn);
    e_output.insert(e_output.end(), y.begin(), y.end());
    e_slope[size(t)] = sinkhorn_slope(here, n, steps, here_grad, direction);
    for (int64_t k = begin; k < end; ++k) slope[size(t)] += static_cast<double>(grad_x[size(k)]) * direction[size(k - begin)];
  }
  compare(name + " output", kFp32, widened(output), e_output);
  compare(name + " gradient", kFp32, slope, e_slope);
}

std::string name_of(const Steps &steps) {
  return " iterations=" + std::to_string(steps.num_iters) + (steps.recipe == mhc::Recipe::kPaper ? " paper" : " deepseek_v4");
}

void test_sinkhorn(int64_t t_count, int64_t n, double scale, const Steps &steps) {
  const std::string name = "sinkhorn T=" + std::to_string(t_count) + " N=" + std::to_string(n) + " scale=" + std::to_string(scale);
  Floats x = random_floats(t_count * n * n, scale);
  for (float &value : x) value = std::clamp(value, -50.0f, 50.0f);
  test_sinkhorn(name + name_of(steps), n, x, steps);
}

// A column that fp32 would lose: e to the -120 is 8e-53. Without eps, its sum divides its entries all the same.
void test_sinkhorn_keeps_a_small_column() {
  for (const mhc::Recipe recipe : {mhc::Recipe::kDeepSeekV4, mhc::Recipe::kPaper}) {
    for (const float eps : {0.0f, 1e-6f}) {
      for (const int64_t n : {2, 4, 8}) {
        const Steps steps{eps, 20, recipe};
        Floats x = random_floats(9 * n * n);
        for (size_t k = 0; k < x.size(); k += size(n)) x[k] = -120.0f;
        const std::string name = "sinkhorn of a small column, N=" + std::to_string(n) + " eps=" + std::to_string(eps) + name_of(steps);
        test_sinkhorn(name, n, x, steps);
        Floats output(x.size());
        mhc::sinkhorn_forward({{9, n, 0}, x.data(), eps, 20, recipe, output.data()});
        for (const float value : output) {
          if (!std::isfinite(value)) return fail(name + ": not finite");
        }
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += output[size(i * n)];
        if (eps == 0.0f && !(std::fabs(sum - 1.0f) < 1e-5f)) fail(name + ": the column's sum is " + std::to_string(sum));
      }
    }
  }
}

// ---- what is special ----

void test_nan_stays_in_its_token() {
  const Shape s{40, 4, 48};
  const int64_t bad = 17, nd = s.n * s.d, f = 24;
  Doubles values = random(s.t * nd);
  Floats h_post(size(s.t * s.n)), h_res(size(s.t * s.n * s.n)), logits = random_floats(s.t * 16), output(logits.size()), grad_x(logits.size());
  values[size(bad * nd + 5)] = std::nan("");
  logits[size(bad * 16 + 3)] = std::numeric_limits<float>::quiet_NaN();
  for (const Type &type : kTypes) {
    Tensor x(type, values), h_in(type, s.t * s.d), out(type, s.t * nd);
    const Floats phi = random_floats(f * nd), alpha = random_floats(3), bias = random_floats(f);
    mhc::PreForward forward{};
    forward.element = type.element;
    forward.sizes = {s.t, s.n, s.d};
    forward.x = x.data();
    forward.phi = phi.data();
    forward.alpha = alpha.data();
    forward.bias = bias.data();
    forward.h_in = h_in.data();
    forward.h_post = h_post.data();
    forward.h_res = h_res.data();
    mhc::pre_forward(forward);
    for (int64_t t = 0; t < s.t; ++t) {
      bool nan = false;
      for (int64_t c = 0; c < s.d; ++c) nan |= std::isnan(h_in.get(t * s.d + c));
      for (int64_t i = 0; i < s.n; ++i) nan |= std::isnan(h_post[size(t * s.n + i)]);
      for (int64_t k = 0; k < 16; ++k) nan |= std::isnan(h_res[size(t * 16 + k)]);
      if (nan != (t == bad)) fail(std::string("pre ") + type.name + ": NaN left its token, or was lost");
    }
    mhc::post_forward({type.element, forward.sizes, x.data(), nullptr, h_in.data(), h_post.data(), out.data()});
    for (int64_t t = 0; t < s.t; ++t) {
      bool nan = false;
      for (int64_t c = 0; c < nd; ++c) nan |= std::isnan(out.get(t * nd + c));
      if (nan != (t == bad)) fail(std::string("post ") + type.name + ": NaN left its token, or was lost");
    }
  }
  const mhc::Sizes sizes{s.t, s.n, 0};
  for (const mhc::Recipe recipe : {mhc::Recipe::kDeepSeekV4, mhc::Recipe::kPaper}) {
    mhc::sinkhorn_forward({sizes, logits.data(), 1e-6f, 20, recipe, output.data()});
    mhc::sinkhorn_backward({sizes, logits.data(), output.data(), 1e-6f, 20, recipe, grad_x.data()});
    for (int64_t t = 0; t < s.t; ++t) {
      for (int64_t k = t * 16; k < (t + 1) * 16; ++k) {
        if (std::isnan(output[size(k)]) != (t == bad)) fail("sinkhorn: NaN left its token, or was lost");
        if (std::isnan(grad_x[size(k)]) != (t == bad)) fail("sinkhorn backward: NaN left its token, or was lost");
      }
    }
  }
}

// Through MhcPost with the identity and h_post = 0, a 16-bit number comes out as it went in; with h_post = w and x = 0,
// w * 1 is rounded to nearest even, halfway cases and overflow included, and NaN stays NaN, also one that rounding its
// bits would make zero. Beside every 61st number only, if it is to be small.
void test_conversions(const Type &type, bool small) {
  Tensor everything(type, 1 << 16), zeros(type, Doubles(1 << 16)), copied(type, 1 << 16);
  for (int64_t bits = 0; bits < 1 << 16; ++bits) {
    everything.set(bits, half_value(static_cast<uint16_t>(bits), type));
  }
  const float zero = 0.0f;
  mhc::post_forward({type.element, {1, 1, 1 << 16}, everything.data(), nullptr, zeros.data(), &zero, copied.data()});
  for (int64_t bits = 0; bits < 1 << 16; ++bits) {
    const double in = everything.get(bits), out = copied.get(bits);
    if (!(in == out || (std::isnan(in) && std::isnan(out)))) return fail(std::string(type.name) + ": not loaded or stored exactly");
  }
  Floats values;
  for (int64_t bits = 0; bits + 1 < 1 << 15; bits += small ? 61 : 1) {
    const double a = half_value(static_cast<uint16_t>(bits), type);
    const double b = half_value(static_cast<uint16_t>(bits + 1), type);
    if (!std::isfinite(b)) continue;
    for (const double value : {a, (a + b) / 2, a + 0.49 * (b - a), a + 0.51 * (b - a)}) {
      values.push_back(static_cast<float>(value));
      values.push_back(-static_cast<float>(value));
    }
  }
  for (const float value : {65519.0f, 65520.0f, 1e5f, 3.39e38f, 3.4e38f, std::numeric_limits<float>::infinity()}) values.push_back(value);
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu}) {
    float nan;
    std::memcpy(&nan, &bits, sizeof nan);
    values.push_back(nan);
  }
  const int64_t count = static_cast<int64_t>(values.size());
  Tensor ones(type, Doubles(size(count), 1.0)), none(type, Doubles(size(count))), rounded(type, count);
  mhc::post_forward({type.element, {count, 1, 1}, none.data(), nullptr, ones.data(), values.data(), rounded.data()});
  for (int64_t i = 0; i < count; ++i) {
    const double expected = half_value(nearest_bits(type, static_cast<double>(values[size(i)])), type);
    const double found = rounded.get(i);
    if (found == expected || (std::isnan(found) && std::isnan(expected))) continue;
    return fail(std::string(type.name) + ": " + std::to_string(values[size(i)]) + " not rounded to nearest even");
  }
}

// Every tensor of 16 bits that an operator writes, in every way of writing it, rounded to nearest even: with small integers
// all arithmetic is exact, so that the one rounding at the end decides every bit. Halfway cases are frequent among them.
Doubles integers(int64_t count, int64_t most) {
  std::uniform_int_distribution<int64_t> any(-most, most);
  Doubles values(size(count));
  for (double &value : values) value = static_cast<double>(any(generator));
  return values;
}

Floats narrowed(const Doubles &values) { return Floats(values.begin(), values.end()); }

void expect_rounded(const std::string &what, const Type &type, const Tensor &found, const Doubles &exact) {
  int64_t rounded = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double expected = half_value(nearest_bits(type, exact[i]), type);
    rounded += expected != exact[i];
    if (found.get(static_cast<int64_t>(i)) != expected) {
      return fail(what + ": " + std::to_string(exact[i]) + " not rounded to nearest even but to " + std::to_string(found.get(static_cast<int64_t>(i))));
    }
  }
  if (rounded < static_cast<int64_t>(exact.size() / 20)) fail(what + ": the test rounds too little");
}

void test_rounding(const Type &type, const Shape &s, int64_t shift) {
  const int64_t n = s.n, d = s.d, nd = n * d, f = n * n + 2 * n, t_count = s.t;
  const std::string name = name_of("rounding", type, s) + (shift ? " shifted" : "");
  const Doubles x_values = integers(t_count * nd, 120), h_values = integers(t_count * d, 120), grad_values = integers(t_count * nd, 120);
  const Doubles res_values = integers(t_count * n * n, 200), post_values = integers(t_count * n, 200);
  Tensor x(type, x_values, shift), h(type, h_values, shift), grad(type, grad_values, shift);
  const Floats h_res = narrowed(res_values), h_post = narrowed(post_values);
  const mhc::Sizes sizes{t_count, n, d};

  Tensor out(type, t_count * nd, shift), grad_x(type, t_count * nd, shift), grad_h_out(type, t_count * d, shift);
  Floats grad_h_res(h_res.size()), grad_h_post(h_post.size());
  mhc::post_forward({type.element, sizes, x.data(), h_res.data(), h.data(), h_post.data(), out.data()});
  mhc::post_backward({type.element, sizes, grad.data(), x.data(), h_res.data(), h.data(), h_post.data(), grad_x.data(),
                      grad_h_res.data(), grad_h_out.data(), grad_h_post.data()});
  Doubles e_out(size(t_count * nd)), e_grad_x(e_out), e_grad_h_out(size(t_count * d));
  for (int64_t t = 0; t < t_count; ++t) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < d; ++c) {
        const int64_t at = t * nd + j * d + c;
        e_out[size(at)] += post_values[size(t * n + j)] * h_values[size(t * d + c)];
        e_grad_h_out[size(t * d + c)] += post_values[size(t * n + j)] * grad_values[size(at)];
        for (int64_t i = 0; i < n; ++i) {
          e_out[size(at)] += res_values[size((t * n + i) * n + j)] * x_values[size(t * nd + i * d + c)];
          e_grad_x[size(at)] += res_values[size((t * n + j) * n + i)] * grad_values[size(t * nd + i * d + c)];
        }
      }
    }
  }
  expect_rounded(name + " post out", type, out, e_out);
  expect_rounded(name + " post grad_x", type, grad_x, e_grad_x);
  expect_rounded(name + " post grad_h_out", type, grad_h_out, e_grad_h_out);

  // Forward: phi is zero, so that a gate is its bias': 0 or 1, and h_pre is hc_eps or one more.
  const Floats zeros(size(f * nd)), alpha = {1, 1, 1};
  Floats bias(size(f)), inv_rms(size(t_count)), h_mix(size(t_count * f)), h_pre(size(t_count * n)), pre_h_post(h_pre.size()), pre_h_res(h_res.size());
  for (int64_t i = 0; i < n; ++i) bias[size(i)] = i % 2 ? 1000.0f : -1000.0f;
  Tensor h_in(type, t_count * d, shift);
  mhc::pre_forward({type.element, sizes, x.data(), zeros.data(), alpha.data(), bias.data(), nullptr, 1.0f, 37.0f,
                    h_in.data(), pre_h_post.data(), pre_h_res.data(), inv_rms.data(), h_mix.data(), h_pre.data()});
  Doubles e_h_in(size(t_count * d));
  for (int64_t t = 0; t < t_count; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < d; ++c) e_h_in[size(t * d + c)] += (i % 2 ? 38 : 37) * x_values[size(t * nd + i * d + c)];
    }
  }
  expect_rounded(name + " pre h_in", type, h_in, e_h_in);

  // Backward: h_pre is 0 or 1 and h_post 0, so that only grad_h_res goes through phi; h_mix is 0, so that x has no share.
  const Doubles phi_values = integers(f * nd, 60);
  const Floats phi = narrowed(phi_values), ones(size(t_count), 1.0f);
  for (float &value : h_pre) value = generator() % 2 ? 1.0f : 0.0f;
  Floats grad_phi(phi.size()), grad_alpha(3), grad_bias(size(f)), nothing(size(t_count * f));
  mhc::pre_backward({type.element, sizes, x.data(), phi.data(), alpha.data(), h.data(), h_post.data(), h_res.data(),
                     ones.data(), nothing.data(), h_pre.data(), nothing.data(), nullptr, grad.data(), 0.0f, grad_x.data(),
                     grad_phi.data(), grad_alpha.data(), grad_bias.data(), nullptr});
  Doubles e_x = grad_values;
  for (int64_t t = 0; t < t_count; ++t) {
    for (int64_t c = 0; c < nd; ++c) {
      double &sum = e_x[size(t * nd + c)];
      sum += static_cast<double>(h_pre[size(t * n + c / d)]) * h_values[size(t * d + c % d)];
      for (int64_t k = 0; k < n * n; ++k) sum += res_values[size(t * n * n + k)] * phi_values[size((2 * n + k) * nd + c)];
    }
  }
  expect_rounded(name + " pre grad_x", type, grad_x, e_x);
}

void test_rounding(bool small) {
  for (const Type &type : {kTypes[1], kTypes[2]}) {
    for (const int64_t n : {1, 2, 3, 4, 6, 8}) {
      test_rounding(type, {5, n, 80}, 0);
      test_rounding(type, {3, n, 50}, 1);
      test_rounding(type, {70, n, 33}, 0);
    }
    if (!small) test_rounding(type, {530, 4, 1024}, 0);  // past the caches
  }
}

// Exceptions inside a parallel region come out of it.
void test_exceptions_leave_a_parallel_region() {
  for (const int64_t bad : {0, 5, 99}) {
    int64_t done = 0;
    bool caught = false;
    mhc::Threads threads(3);
    try {
      threads.run([&] {
        threads.share_as_they_come(100, [&](int64_t i) {
          if (i == bad) throw std::bad_alloc();
        });
        threads.share(100, [&](int64_t i) {
          if (i == bad) throw std::bad_alloc();
          if (i == 0) ++done;
        });
        threads.one_of_them([] { throw std::bad_alloc(); });
      });
    } catch (const std::bad_alloc &) {
      caught = true;
    }
    if (!caught) fail("an exception did not come out of a parallel region");
    if (done) fail("work went on after an exception");
  }
}

void test_no_tokens() {
  for (const Type &type : kTypes) test_pre(type, {0, 4, 64}, true, true, 0);
  for (const Type &type : kTypes) test_post(type, {0, 4, 64}, true, 0);
  test_sinkhorn(0, 4, 1.0, {1e-6f, 20, mhc::Recipe::kDeepSeekV4});
}

}  // namespace

int main(int argc, char **argv) {
  const std::string isa = argc > 1 ? argv[1] : "", names = std::string(MhcIsaNames()) + ",";
  if (names.find(isa + ",") == std::string::npos) {
    std::printf("skipped: this machine has no %s\n", isa.c_str());
    return 101;
  }
  if (isa != MhcIsa()) {
    std::printf("FAILED: %s runs, not %s\n", MhcIsa(), isa.c_str());
    return 1;
  }
  const bool small = argc > 2;
  const Shape shapes[] = {{1, 4, 64},  {1, 1, 1},   {3, 2, 1},  {5, 4, 33},  {37, 4, 512}, {33, 6, 80}, {19, 8, 128},
                          {40, 3, 33}, {7, 16, 64}, {70, 2, 96}, {9, 5, 17}, {130, 4, 24}, {2, 4, 700}};
  for (const Shape &shape : shapes) {
    if (small && shape.t * shape.n * shape.d > 4000) continue;
    for (const Type &type : kTypes) {
      for (const bool option : {false, true}) {
        const int64_t shift = option ? 0 : 1;
        test_pre(type, shape, option, !option, shift);
        test_pre(type, shape, option, option, shift);
        test_post(type, shape, option, shift);
      }
    }
  }
  // Large enough for every special way: past the caches, several groups, several sums in fp32.
  for (const Type &type : kTypes) {
    if (small) continue;
    test_pre(type, {1100, 4, 512}, true, true, 0);
    test_post(type, {1100, 4, 512}, true, 0);
  }
  // N of 6, 8 and 16 under sanitizers too; a large eps, with which a mistake about it shows.
  for (const int64_t n : {1, 2, 3, 4, 6, 8, 16}) {
    for (const Type &type : kTypes) {
      for (const mhc::Recipe recipe : {mhc::Recipe::kDeepSeekV4, mhc::Recipe::kPaper}) {
        for (const bool option : {false, true}) {
          const Steps steps{option ? 0.1f : 1e-3f, option ? 1 : 5, recipe};
          test_pre(type, {n < 16 ? 9 : 2, n, 24}, option, !option, 0, &steps);
          test_pre(type, {n < 16 ? 3 : 1, n, 70}, option, option, 0, &steps);
        }
      }
      test_post(type, {3, n, 40}, true, 0);
    }
    for (const bool with_gamma : {false, true}) {
      if (n > (small ? 4 : 8)) continue;
      test_pre_does_not_depend_on_the_other_tokens(kTypes[2], n, 192, with_gamma);
      test_pre_does_not_depend_on_the_other_tokens(kTypes[n % 2], n, 100, with_gamma);
    }
  }
  for (const mhc::Recipe recipe : {mhc::Recipe::kDeepSeekV4, mhc::Recipe::kPaper}) {
    const Steps steps{1e-6f, 20, recipe};
    if (!small) test_pre(kTypes[2], {140, 4, 64}, true, true, 0, &steps);
  }
  for (const int64_t n : {1, 2, 3, 4, 6, 8, 16}) {
    for (const int64_t num_iters : {1, 2, 20, 100}) {
      if (small && (n > 4 || num_iters > 20)) continue;
      for (const double scale : {0.5, 5.0, 50.0}) {
        for (const mhc::Recipe recipe : {mhc::Recipe::kDeepSeekV4, mhc::Recipe::kPaper}) {
          test_sinkhorn(11, n, scale, {scale == 5.0 ? 1e-2f : 1e-6f, num_iters, recipe});
        }
      }
    }
  }
  test_conversions(kTypes[1], small);
  test_conversions(kTypes[2], small);
  test_sinkhorn_keeps_a_small_column();
  test_rounding(small);
  test_exceptions_leave_a_parallel_region();
  test_nan_stays_in_its_token();
  test_no_tokens();
  std::printf("%d failures\n", failures);
  return std::min(failures, 100);
}
