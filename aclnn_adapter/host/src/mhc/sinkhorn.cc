// aclnnMhcSinkhorn and aclnnMhcSinkhornBackward (ACLNN_SPEC.md sections 5, 6 and 11).
//
// Step k of a token leaves norm[k], the matrix that it made, and sum[k], what it divided by; rows are padded to 8 floats.
// norm[0] is the softmax without eps, which is what the exact gradient needs; sum[0] is not used.
#include <algorithm>

#include "framework/parallel.h"
#include "mhc/checks.h"
#include "mhc/entry.h"
#include "mhc/matrix.h"

namespace host {
namespace {

constexpr std::int64_t kPadded = 8;

// Where the device's kernel puts them, for callers who fill them by hand: tokens are dealt to the cores, each core works
// in pieces that fit its buffer, and in a piece the tokens lie side by side.
class Layout {
 public:
  Layout(std::int64_t tokens, std::int64_t streams, std::int64_t steps)
      : tokens_(tokens), n_(streams), steps_(steps), per_core_((tokens + kCores - 1) / kCores) {
    piece_ = bytes(per_core_) > kBuffer ? kBuffer / bytes(1) : per_core_;
    if (piece_ < per_core_ && piece_ >= 8) piece_ -= piece_ % 8;
  }

  std::int64_t norm(std::int64_t step, std::int64_t token, std::int64_t i) const {
    const Place p = place(token);
    return (p.first * steps_ * n_ + (step * n_ + i) * p.count + p.index) * kPadded;
  }

  // The sums of rows (even steps) lie row by row, those of columns token by token.
  std::int64_t sum(std::int64_t step, std::int64_t token, std::int64_t k) const {
    const Place p = place(token);
    const std::int64_t base = (p.first * steps_ + step * p.count) * kPadded;
    return base + (step % 2 == 0 ? k * p.count + p.index : p.index * kPadded + k);
  }

 private:
  static constexpr std::int64_t kCores = 64, kBuffer = (248 * 1024 - 64 - 2 * 256) / 2;  // bytes, for one of two buffers

  struct Place {
    std::int64_t first, count, index;  // the piece's first token, how many it has, the token's number among them
  };

  std::int64_t bytes(std::int64_t count) const {
    const auto padded = [](std::int64_t size) { return (size + 7) / 8 * 8; };
    return 4 * (2 * padded(count * n_ * n_) + padded(2 * count * n_ * kPadded) + padded(2 * count * kPadded));
  }

  Place place(std::int64_t token) const {
    const std::int64_t core = token / per_core_ * per_core_, end = std::min(core + per_core_, tokens_);
    const std::int64_t first = core + (token - core) / piece_ * piece_;
    return {first, std::min(piece_, end - first), token - first};
  }

  std::int64_t tokens_, n_, steps_, per_core_, piece_;
};

// The saved tensors of one token.
class Saved {
 public:
  Saved(const Layout &layout, std::int64_t token, std::int64_t streams) : layout_(layout), token_(token), n_(streams) {}

  void store(const Matrix &m, float *norm, std::int64_t step) const {
    for (std::int64_t i = 0; i < n_; ++i) {
      for (std::int64_t j = 0; j < n_; ++j) norm[layout_.norm(step, token_, i) + j] = static_cast<float>(m.at[i][j]);
    }
  }
  Matrix load(const float *norm, std::int64_t step) const {
    float values[kMaxStreams * kMaxStreams];
    for (std::int64_t i = 0; i < n_; ++i) std::copy_n(norm + layout_.norm(step, token_, i), n_, values + i * n_);
    return {values, n_};
  }
  std::int64_t sum(std::int64_t step, std::int64_t k) const { return layout_.sum(step, token_, k); }

 private:
  const Layout &layout_;
  std::int64_t token_, n_;
};

// Odd steps divide columns by their sums, even steps rows.
void save_token(const float *logits, double eps, std::int64_t steps, const Saved &saved, std::int64_t n, float *norm,
                float *sums) {
  Matrix m(logits, n);
  m.exponentiate();
  const Matrix exponentials = m;
  m.divide(false, [&](std::int64_t i) { return exponentials.row(i); });
  saved.store(m, norm, 0);
  m.each([&](double &element, auto...) { element += eps; });
  for (std::int64_t step = 1; step < steps; ++step) {
    const bool columns = step % 2 == 1;
    const Matrix before = m;
    m.divide(columns, [&](std::int64_t k) { return before.sum(columns, k) + eps; });
    for (std::int64_t k = 0; k < n; ++k) sums[saved.sum(step, k)] = static_cast<float>(before.sum(columns, k) + eps);
    saved.store(m, norm, step);
  }
}

void backward_token(const float *grad_output, const float *norm, const float *sums, std::int64_t steps,
                    const Saved &saved, std::int64_t n, float *out) {
  Matrix g(grad_output, n);
  for (std::int64_t step = steps - 1; step >= 1; --step) {
    const bool columns = step % 2 == 1;
    g.take_off(columns, saved.load(norm, step));
    g.divide(columns, [&](std::int64_t k) { return static_cast<double>(sums[saved.sum(step, k)]); });
  }
  const Matrix softmax = saved.load(norm, 0);
  g.take_off(false, softmax);
  g.each([&](double &element, std::int64_t i, std::int64_t j) { element *= softmax.at[i][j]; });
  g.store(out);
}

void compute_forward(const Call &call) {
  const Arrays array(call);
  const mhc::Sizes sizes = call.sizes();
  mhc::SinkhornForward args{};
  args.sizes = sizes;
  args.x = array["x"];
  args.eps = call.attr<float>("eps");
  args.num_iters = call.attr<std::int64_t>("numIters");
  args.recipe = mhc::Recipe::kDeepSeekV4;
  args.output = array["output"];
  mhc::sinkhorn_forward(args);
  if (call.given("normOut")) {
    float *norm = array["normOut"], *sums = array["sumOut"];
    std::fill_n(norm, call.tensor("normOut")->size(), 0.0F);  // the padding too
    std::fill_n(sums, call.tensor("sumOut")->size(), 0.0F);
    const Layout layout(sizes.tokens, sizes.streams, 2 * args.num_iters);
    for (std::int64_t token = 0; token < sizes.tokens; ++token) {
      save_token(args.x + token * sizes.streams * sizes.streams, static_cast<double>(args.eps), 2 * args.num_iters,
                 Saved(layout, token, sizes.streams), sizes.streams, norm, sums);
    }
  }
  array.write();
}

void compute_backward(const Call &call, std::int64_t steps) {
  const Arrays array(call);
  const mhc::Sizes sizes = call.sizes();
  const std::int64_t n = sizes.streams;
  const float *grad = array["gradOutput"], *norm = array["normOut"], *sums = array["sumOut"];
  float *out = array["out"];
  const Layout layout(sizes.tokens, n, steps);
  parallel_for(sizes.tokens, sizes.tokens > 64, [&](std::int64_t token) {
    backward_token(grad + token * n * n, norm, sums, steps, Saved(layout, token, n), n, out + token * n * n);
  });
  array.write();
}

// A null pointer, or a placeholder of one dimension with one element.
bool absent(const Tensor *saved) { return saved == nullptr || saved->shape == Shape{1}; }

const std::vector<std::int64_t> kStreams = {4, 6, 8};                                  // the parameter checks know no soc
const contract::Limits kIterations{{}, 1, {}, 1, {}, {{1, 100}}, {}, {}};

}  // namespace

namespace kernels {

Plan mhc_sinkhorn(Call call) {
  const Checker check(call);
  for (const char *name : {"normOut", "sumOut"}) {
    if (absent(call.tensor(name))) call.leave_out(name);
  }
  require(call.given("normOut") == call.given("sumOut"), kInvalid, call.op().name,
          ": normOut and sumOut must be given both or neither");
  check.not_null();
  check.dtypes({"x", "output"});
  const Tensor &x = *call.tensor("x"), &output = *call.tensor("output");
  require(output.shape == x.shape, kInvalid, call.where("output"), " ", output.describe(), " is not like x");
  check.ranks({"x"});
  check.iterations_within(kIterations, call.attr<std::int64_t>("numIters"), kInvalid);
  call.set_size("I", call.attr<std::int64_t>("numIters"));
  check.streams_within(kStreams, kInvalid);
  check.shapes();
  check.dtypes();
  check.same_format("x", "output");
  check.not_empty("input");
  check.limits();
  return {[=] { compute_forward(call); }};
}

Plan mhc_sinkhorn_backward(Call call) {
  const Checker check(call);
  check.not_null();
  check.dtypes();
  check.ranks({"gradOutput", "out"});
  check.streams_within(kStreams, kInvalid);
  check.shapes({"gradOutput", "out"});
  check.same_format("gradOutput", "out");
  if (call.tensor("gradOutput")->empty()) return {[] {}};
  check.limits();
  // Nothing else tells how many iterations there were. The parameter check does not look at the saved tensors' shapes.
  const std::int64_t per_iteration = 2 * call.size("T") * call.size("N") * kPadded;
  const Tensor &norm = *call.tensor("normOut"), &sum = *call.tensor("sumOut");
  const std::int64_t iterations = norm.size() / per_iteration;
  const bool fit =
    iterations >= 1 && norm.size() == iterations * per_iteration && sum.size() * call.size("N") == norm.size();
  require(fit, kTilingError, call.op().name, ": normOut ", norm.describe(), " and sumOut ", sum.describe(),
          " do not belong to gradOutput ", call.tensor("gradOutput")->describe());
  return {[=] { compute_backward(call, 2 * iterations); }};
}

}  // namespace kernels
}  // namespace host
