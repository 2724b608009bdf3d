// aclnnMhcPreSinkhorn and aclnnMhcPreSinkhornBackward (ACLNN_SPEC.md sections 7, 8 and 11), with the devices' deviations
// from the exact derivative:
//
//   - products with phi are HF32, but for the backward pass on Ascend 950
//   - the sums of the first two steps are saved without eps on A2 and A3, which save the matrices of even steps only;
//     their backward pass adds eps to every sum, so to all but the first two for the second time
//   - Ascend 950 takes hcEps off a sigmoid that never had it
//   - the first step is differentiated as e / (sum of e + eps), but it is e / (sum of e) + eps
#include "framework/parallel.h"
#include "mhc/checks.h"
#include "mhc/entry.h"
#include "mhc/matrix.h"
#include "mhc/products.h"

namespace host {
namespace {

bool on_950() { return soc_version() == "ascend950"; }

// The saved tensors in their natural layout: sum [steps, T, N], norm [steps, T, N, N]. Null where they are not wanted.
struct Saved {
  float *sums, *norm;
  std::int64_t tokens, n;

  float *sum_at(std::int64_t step, std::int64_t token) const { return sums + (step * tokens + token) * n; }
  float *norm_at(std::int64_t step, std::int64_t token) const { return norm + (step * tokens + token) * n * n; }
  Matrix matrix(std::int64_t step, std::int64_t token) const { return {norm_at(step, token), n}; }
};

void save(const Saved &saved, std::int64_t step, std::int64_t token, const Matrix &before, const Matrix &after,
          double eps) {
  if (saved.norm == nullptr) return;
  const double stored_eps = on_950() || step >= 2 ? eps : 0;
  for (std::int64_t k = 0; k < saved.n; ++k) {
    saved.sum_at(step, token)[k] = static_cast<float>(before.sum(step % 2 == 1, k) + stored_eps);
  }
  if (on_950() || step % 2 == 0) after.store(saved.norm_at(step, token));
}

void mix_token(const float *logits, double eps, std::int64_t steps, std::int64_t token, const Saved &saved, float *out) {
  Matrix m(logits, saved.n);
  m.exponentiate();
  Matrix before = m;
  m.divide(false, [&](std::int64_t i) { return before.row(i); });
  m.each([&](double &element, auto...) { element += eps; });
  save(saved, 0, token, before, m, eps);
  for (std::int64_t step = 1; step < steps; ++step) {
    const bool columns = step % 2 == 1;
    before = m;
    m.divide(columns, [&](std::int64_t k) { return before.sum(columns, k) + eps; });
    save(saved, step, token, before, m, eps);
  }
  m.store(out);
}

// The gradient of the matrix's logits.
void unmix_token(const float *grad_h_res, const float *logits, double eps, std::int64_t steps, std::int64_t token,
                 const Saved &saved, float *out) {
  Matrix g(grad_h_res, saved.n);
  const double added = on_950() ? 0 : eps;
  for (std::int64_t step = steps - 2; step >= 0; step -= 2) {
    const float *rows = saved.sum_at(step, token), *columns = saved.sum_at(step + 1, token);
    const Matrix normed = saved.matrix(step, token);
    Matrix divided = normed;  // what the column step made of it
    divided.divide(true, [&](std::int64_t k) { return static_cast<double>(columns[k]) + added; });
    g.take_off(true, divided);
    g.divide(true, [&](std::int64_t k) { return static_cast<double>(columns[k]) + added; });
    g.take_off(false, normed);
    g.divide(false, [&](std::int64_t k) { return static_cast<double>(rows[k]) + added; });
  }
  Matrix e(logits, saved.n);
  for (std::int64_t i = 0; i < saved.n; ++i) {
    const auto largest = std::max_element(e.at[i], e.at[i] + saved.n) - e.at[i];
    const double most = e.at[i][largest];
    for (std::int64_t j = 0; j < saved.n; ++j) g.at[i][j] *= std::exp(e.at[i][j] - most);
    g.at[i][largest] -= g.row(i);
  }
  g.store(out);
}

void compute_forward(const Call &call, bool hf32) {
  const Arrays array(call);
  const mhc::Sizes sizes = call.sizes();
  std::vector<float> logits(static_cast<std::size_t>(sizes.tokens * sizes.streams * sizes.streams));
  mhc::PreForward args{};
  args.element = call.element();
  args.sizes = sizes;
  args.x = array["x"];
  args.phi = array["phi"];
  args.alpha = array["alpha"];
  args.bias = array["bias"];
  args.norm_eps = call.attr<float>("normEps");
  args.hc_eps = call.attr<float>("hcEps");
  args.h_in = array["hin"];
  args.h_post = array["hPost"];
  args.h_res = logits.data();
  args.inv_rms = array["invRms"];
  args.h_mix = array["hcBeforeNorm"];
  args.h_pre = array["hPre"];
  pre_forward(args, {hf32, false});
  const Saved saved{array["sumOut"], array["normOut"], sizes.tokens, sizes.streams};
  const std::int64_t steps = 2 * call.attr<std::int64_t>("numIters"), matrix = sizes.streams * sizes.streams;
  float *h_res = array["hRes"];
  parallel_for(sizes.tokens, sizes.tokens > 64, [&](std::int64_t t) {
    mix_token(logits.data() + t * matrix, static_cast<double>(args.hc_eps), steps, t, saved, h_res + t * matrix);
  });
  array.write();
}

float sigmoid_slope(float s) { return s * (1 - s); }

// The gates are computed once more from hcBeforeNorm.
std::vector<float> gradients(const mhc::PreBackward &args, const float *bias, const Saved &saved, std::int64_t steps) {
  const std::int64_t n = saved.n, d = args.sizes.hidden, rows = mhc::num_gates(n);
  std::vector<float> result(static_cast<std::size_t>(saved.tokens * rows));
  parallel_for(saved.tokens, true, [&](std::int64_t t) {
    const std::vector<float> x = read(args.x, args.element, t * n * d, n * d);
    const std::vector<float> grad_h_in = read(args.grad_h_in, args.element, t * d, d);
    float *grad = result.data() + t * rows;
    std::vector<float> z(static_cast<std::size_t>(rows));
    for (std::int64_t f = 0; f < rows; ++f) {
      const std::int64_t gate = std::min<std::int64_t>(f / n, 2);
      z[static_cast<std::size_t>(f)] = args.h_mix[t * rows + f] * args.inv_rms[t] * args.alpha[gate] + bias[f];
    }
    for (std::int64_t i = 0; i < 2 * n; ++i) {
      const float s = 1.0F / (1.0F + std::exp(-z[static_cast<std::size_t>(i)]));
      if (i >= n) {
        grad[i] = 2 * args.grad_h_post[t * n + i - n] * sigmoid_slope(s);
        continue;
      }
      double grad_h_pre = 0;
      for (std::int64_t k = 0; k < d; ++k) {
        grad_h_pre += static_cast<double>(grad_h_in[static_cast<std::size_t>(k)]) *
                      static_cast<double>(x[static_cast<std::size_t>(i * d + k)]);
      }
      grad[i] = static_cast<float>(grad_h_pre) * sigmoid_slope(on_950() ? s - args.hc_eps : s);
    }
    unmix_token(args.grad_h_res + t * n * n, z.data() + 2 * n, static_cast<double>(args.hc_eps), steps, t, saved,
                grad + 2 * n);
  });
  return result;
}

void compute_backward(const Call &call, bool hf32) {
  const Arrays array(call);
  mhc::PreBackward args{};
  args.element = call.element();
  args.sizes = call.sizes();
  args.grad_h_in = array["gradHin"];
  args.grad_h_post = array["gradHPost"];
  args.grad_h_res = array["gradHRes"];
  args.x = array["x"];
  args.phi = array["phi"];
  args.alpha = array["alpha"];
  args.h_pre = array["hPre"];
  args.h_mix = array["hcBeforeNorm"];
  args.inv_rms = array["invRms"];
  args.hc_eps = call.attr<float>("hcEps");
  args.grad_x = array["gradX"];
  args.grad_phi = array["gradPhi"];
  args.grad_alpha = array["gradAlpha"];
  args.grad_bias = array["gradBias"];
  const Saved saved{array["sumOut"], array["normOut"], args.sizes.tokens, args.sizes.streams};
  pre_backward(args, gradients(args, array["bias"], saved, call.tensor("sumOut")->shape[0]), hf32);
  array.write();
}

}  // namespace

namespace kernels {

Plan mhc_pre_sinkhorn(Call call) {
  const Checker check(call);
  check.not_null();
  for (const char *name : {"hPre", "hcBeforeNorm", "invRms", "sumOut", "normOut"}) {
    if (call.attr<bool>("needBackward")) {
      check.not_null({name});
    } else {
      call.leave_out(name);  // not looked at
    }
  }
  check.dtypes();
  check.ranks({"x"});
  const auto streams = call.attr<std::int64_t>("hcMult"), iterations = call.attr<std::int64_t>("numIters");
  require(streams == 4, kInvalid, call.where("hcMult"), " is ", streams, ", not 4");
  require(call.size("N") == streams, kInvalid, call.where("x"), " has ", call.size("N"), " streams, but hcMult is ",
          streams);
  const contract::Limits &limits = check.limits();
  check.iterations_within(limits, iterations, kInvalid);
  call.set_size("I", iterations);
  check.shapes();
  check.public_formats("");
  for (const char *name : {"x", "hin", "hPost", "hRes"}) {
    if (call.tensor(name)->empty()) return {[] {}};
  }
  check.hidden_within(limits, kTilingError);
  check.hidden_multiple(limits.hidden_multiple, kTilingError);
  const bool hf32 = limits.hf32.at(0);
  return {[=] { compute_forward(call, hf32); }, static_cast<std::uint64_t>(call.size("T") * call.size("F")) * 4};
}

Plan mhc_pre_sinkhorn_backward(Call call) {
  const Checker check(call);
  check.not_null();
  const Tensor &grad_h_res = *call.tensor("gradHRes"), &sums = *call.tensor("sumOut"), &norm = *call.tensor("normOut");
  check.ranks({"gradHin", "x"});
  const std::int64_t n = call.size("N");
  if (grad_h_res.rank() == call.tokens().size() + 1) {
    Shape flat = call.tokens();
    flat.push_back(n * n);
    require(grad_h_res.shape == flat, kInvalid, call.where("gradHRes"), " has shape ", to_string(grad_h_res.shape),
            ", not ", to_string(flat));
    call.accept_shape("gradHRes");
  }
  check.ranks("");
  call.set_size("I", sums.shape[0] / 2);
  check.shapes();
  const contract::Limits &limits = check.limits();
  check.streams_within(limits.streams, kInvalid);
  check.hidden_within(limits, kInvalid);
  check.hidden_multiple(limits.hidden_multiple, kInvalid);
  check.dtypes();
  if (check.any_input_empty()) return {[] {}};
  check.iterations_within(limits, norm.shape[0] / 2, kTilingError);
  const bool hf32 = limits.hf32.at(0);
  return {[=] { compute_backward(call, hf32); }, static_cast<std::uint64_t>(call.size("T") * call.size("F")) * 4};
}

}  // namespace kernels
}  // namespace host
