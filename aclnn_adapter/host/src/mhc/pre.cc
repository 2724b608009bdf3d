// aclnnMhcPre, aclnnMhcPreBackward and their V2 forms (ACLNN_SPEC.md sections 1 and 2).
#include "framework/dense.h"
#include "framework/operator.h"
#include "mhc.h"
#include "mhc/checks.h"

namespace host {
namespace {

// Scratch memory of about the size that the vendor asks for: the mixed values of each token, and a fixed part.
constexpr std::uint64_t kFixedWorkspace = 1 << 16;

struct PreTensors {
  const Tensor *x, *phi, *alpha, *bias, *gamma;
  Tensor *h_in, *h_post, *h_res, *inv_rms, *h_mix, *h_pre;
};

void compute_pre(const PreTensors &t, mhc::Element element, mhc::Sizes sizes, double norm_eps, double hc_eps) {
  DenseInput x(t.x), phi(t.phi), alpha(t.alpha), bias(t.bias), gamma(t.gamma);
  DenseOutput h_in(t.h_in), h_post(t.h_post), h_res(t.h_res), inv_rms(t.inv_rms), h_mix(t.h_mix), h_pre(t.h_pre);
  mhc::PreForward args{};
  args.element = element;
  args.sizes = sizes;
  args.x = x.get<void>();
  args.phi = phi.get<float>();
  args.alpha = alpha.get<float>();
  args.bias = bias.get<float>();
  args.gamma = gamma.get<float>();
  args.norm_eps = static_cast<float>(norm_eps);  // the kernel's attributes are float
  args.hc_eps = static_cast<float>(hc_eps);
  args.h_in = h_in.get<void>();
  args.h_post = h_post.get<float>();
  args.h_res = h_res.get<float>();
  args.inv_rms = inv_rms.get<float>();
  args.h_mix = h_mix.get<float>();
  args.h_pre = h_pre.get<float>();
  mhc::pre_forward(args);
  for (const DenseOutput *output : {&h_in, &h_post, &h_res, &inv_rms, &h_mix, &h_pre}) output->write();
}

Plan prepare_pre(const char *name, const PreTensors &t, double norm_eps, double hc_eps, std::int64_t mode) {
  Checker check(name, {t.x, t.phi, t.alpha, t.bias, t.gamma, t.h_in, t.h_post, t.h_res, t.inv_rms, t.h_mix, t.h_pre});
  check.not_null({"x", "phi", "alpha", "bias", "hIn", "hPost"});
  for (const Tensor *input : {t.x, t.phi, t.alpha, t.bias}) {
    require(!input->empty(), kInvalid, name, ": an input is empty: ", input->describe());
  }
  check.ranks("input");
  const std::int64_t gates = t.alpha->shape[0];
  require(gates == 2 || gates == 3, kInvalid, check.where("alpha"), " has ", gates, " elements, not 2 or 3");
  require(gates == 3, kTilingError, check.where("alpha"), " of 2 elements is not served by the host CANN");
  check.not_null({"hRes"});
  check.ranks("output");
  check.all_or_none({"invRmsOptional", "hMixOptional", "hPreOptional"});
  static const contract::Limits unlimited{{4, 6, 8}, 1, {}, 16, {}, {}, {}, {}};  // the parameter check knows no soc
  check.streams_within(unlimited, kInvalid);
  check.hidden_multiple(unlimited, kInvalid);
  check.shapes();
  check.dtypes();
  check.formats("");
  check.impl_mode(mode);
  check.hidden_within(check.limits(), kTilingError);
  const std::uint64_t workspace = kFixedWorkspace + static_cast<std::uint64_t>(check.size("T") * check.size("F")) * 4;
  return {[=, element = check.element(), sizes = check.sizes()] { compute_pre(t, element, sizes, norm_eps, hc_eps); },
          workspace};
}

Plan pre(const Tensor *x, const Tensor *phi, const Tensor *alpha, const Tensor *bias, const Tensor *gamma,
         double norm_eps, double hc_eps, Tensor *h_in, Tensor *h_post, Tensor *h_res, Tensor *inv_rms, Tensor *h_mix,
         Tensor *h_pre) {
  return prepare_pre("aclnnMhcPre", {x, phi, alpha, bias, gamma, h_in, h_post, h_res, inv_rms, h_mix, h_pre}, norm_eps,
                     hc_eps, 0);
}

// Mode 1 lets the device round the factors of matrix products to HF32; the host always multiplies in full fp32.
Plan pre_v2(const Tensor *x, const Tensor *phi, const Tensor *alpha, const Tensor *bias, const Tensor *gamma,
            double norm_eps, double hc_eps, std::int64_t mode, Tensor *h_in, Tensor *h_post, Tensor *h_res,
            Tensor *inv_rms, Tensor *h_mix, Tensor *h_pre) {
  return prepare_pre("aclnnMhcPreV2", {x, phi, alpha, bias, gamma, h_in, h_post, h_res, inv_rms, h_mix, h_pre},
                     norm_eps, hc_eps, mode);
}

struct PreBackwardTensors {
  const Tensor *x, *phi, *alpha, *grad_h_in, *grad_h_post, *grad_h_res, *inv_rms, *h_mix, *h_pre, *h_post, *gamma;
  const Tensor *grad_x_post;
  const Tensor *grad_x, *grad_phi, *grad_alpha, *grad_bias, *grad_gamma;
};

void compute_pre_backward(const PreBackwardTensors &t, mhc::Element element, mhc::Sizes sizes, float hc_eps) {
  DenseInput x(t.x), phi(t.phi), alpha(t.alpha), grad_h_in(t.grad_h_in), grad_h_post(t.grad_h_post),
    grad_h_res(t.grad_h_res), inv_rms(t.inv_rms), h_mix(t.h_mix), h_pre(t.h_pre), h_post(t.h_post), gamma(t.gamma),
    grad_x_post(t.grad_x_post);
  // Without gamma the kernel never writes its gradient.
  DenseOutput grad_x(t.grad_x), grad_phi(t.grad_phi), grad_alpha(t.grad_alpha), grad_bias(t.grad_bias),
    grad_gamma(t.gamma != nullptr ? t.grad_gamma : nullptr);
  mhc::PreBackward args{};
  args.element = element;
  args.sizes = sizes;
  args.x = x.get<void>();
  args.phi = phi.get<float>();
  args.alpha = alpha.get<float>();
  args.grad_h_in = grad_h_in.get<void>();
  args.grad_h_post = grad_h_post.get<float>();
  args.grad_h_res = grad_h_res.get<float>();
  args.inv_rms = inv_rms.get<float>();
  args.h_mix = h_mix.get<float>();
  args.h_pre = h_pre.get<float>();
  args.h_post = h_post.get<float>();
  args.gamma = gamma.get<float>();
  args.grad_x_post = grad_x_post.get<void>();
  args.hc_eps = hc_eps;
  args.grad_x = grad_x.get<void>();
  args.grad_phi = grad_phi.get<float>();
  args.grad_alpha = grad_alpha.get<float>();
  args.grad_bias = grad_bias.get<float>();
  args.grad_gamma = grad_gamma.get<float>();
  mhc::pre_backward(args);
  for (const DenseOutput *output : {&grad_x, &grad_phi, &grad_alpha, &grad_bias, &grad_gamma}) output->write();
}

Plan prepare_pre_backward(const char *name, const PreBackwardTensors &t, float hc_eps, std::int64_t mode) {
  Checker check(name, {t.x, t.phi, t.alpha, t.grad_h_in, t.grad_h_post, t.grad_h_res, t.inv_rms, t.h_mix, t.h_pre,
                       t.h_post, t.gamma, t.grad_x_post, t.grad_x, t.grad_phi, t.grad_alpha, t.grad_bias,
                       t.grad_gamma});
  check.not_null();
  if (t.gamma != nullptr) check.not_null({"gradGamma"});
  check.not_empty("input");
  check.ranks("");
  check.shapes();
  check.dtypes();
  check.formats("input");
  check.impl_mode(mode);
  const contract::Limits &limits = check.limits();
  check.streams_within(limits, kTilingError);  // in the vendor's tiling, not in its parameter check
  check.hidden_within(limits, kTilingError);
  check.hidden_multiple(limits, kTilingError);
  const std::uint64_t workspace = kFixedWorkspace + static_cast<std::uint64_t>(check.size("T") * check.size("F")) * 4;
  return {[=, element = check.element(), sizes = check.sizes()] { compute_pre_backward(t, element, sizes, hc_eps); },
          workspace};
}

Plan pre_backward(const Tensor *x, const Tensor *phi, const Tensor *alpha, const Tensor *grad_h_in,
                  const Tensor *grad_h_post, const Tensor *grad_h_res, const Tensor *inv_rms, const Tensor *h_mix,
                  const Tensor *h_pre, const Tensor *h_post, const Tensor *gamma, const Tensor *grad_x_post,
                  float hc_eps, const Tensor *grad_x, const Tensor *grad_phi, const Tensor *grad_alpha,
                  const Tensor *grad_bias, const Tensor *grad_gamma) {
  return prepare_pre_backward("aclnnMhcPreBackward",
                              {x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, gamma,
                               grad_x_post, grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma},
                              hc_eps, 0);
}

Plan pre_backward_v2(const Tensor *x, const Tensor *phi, const Tensor *alpha, const Tensor *grad_h_in,
                     const Tensor *grad_h_post, const Tensor *grad_h_res, const Tensor *inv_rms, const Tensor *h_mix,
                     const Tensor *h_pre, const Tensor *h_post, const Tensor *gamma, const Tensor *grad_x_post,
                     float hc_eps, std::int64_t mode, const Tensor *grad_x, const Tensor *grad_phi,
                     const Tensor *grad_alpha, const Tensor *grad_bias, const Tensor *grad_gamma) {
  return prepare_pre_backward("aclnnMhcPreBackwardV2",
                              {x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, gamma,
                               grad_x_post, grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma},
                              hc_eps, mode);
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnMhcPre, host::pre)
ACLNN_OPERATOR(aclnnMhcPreV2, host::pre_v2)
ACLNN_OPERATOR(aclnnMhcPreBackward, host::pre_backward)
ACLNN_OPERATOR(aclnnMhcPreBackwardV2, host::pre_backward_v2)
