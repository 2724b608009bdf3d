// aclnnMhcPre, aclnnMhcPreBackward and their V2 forms (ACLNN_SPEC.md sections 1 and 2).
#include <cstring>

#include "mhc/checks.h"
#include "mhc/entry.h"
#include "mhc/products.h"

namespace host {
namespace {

// Scratch memory of about the size that the vendor asks for: the mixed values of each token, and a fixed part.
std::uint64_t workspace(const Call &call) {
  return (1 << 16) + static_cast<std::uint64_t>(call.size("T") * call.size("F")) * 4;
}

bool in_hf32(const Call &call, const contract::Limits &limits) {
  return limits.hf32.at(call.has("opImplMode") ? call.attr<std::size_t>("opImplMode") : 0);
}

void compute_forward(const Call &call, PreForm form) {
  const Arrays array(call);
  mhc::PreForward args{};
  args.element = call.element();
  args.sizes = call.sizes();
  args.x = array["x"];
  args.phi = array["phi"];
  args.alpha = array["alpha"];
  args.bias = array["bias"];
  args.gamma = array["gammaOptional"];
  args.norm_eps = call.attr<float>("normEps");  // the kernel's attributes are float
  args.hc_eps = call.attr<float>("hcEps");
  args.h_in = array["hIn"];
  args.h_post = array["hPost"];
  args.h_res = array["hRes"];
  args.inv_rms = array["invRmsOptional"];
  args.h_mix = array["hMixOptional"];
  args.h_pre = array["hPreOptional"];
  if (form.hf32 || form.two_gates) {
    pre_forward(args, form);
  } else {
    mhc::pre_forward(args);
  }
  array.write();
}

void compute_backward(const Call &call, bool hf32) {
  const Arrays array(call);
  mhc::PreBackward args{};
  args.element = call.element();
  args.sizes = call.sizes();
  args.x = array["x"];
  args.phi = array["phi"];
  args.alpha = array["alpha"];
  args.grad_h_in = array["gradHIn"];
  args.grad_h_post = array["gradHPost"];
  args.grad_h_res = array["gradHRes"];
  args.inv_rms = array["invRms"];
  args.h_mix = array["hMix"];
  args.h_pre = array["hPre"];
  args.h_post = array["hPost"];
  args.gamma = array["gammaOptional"];
  args.grad_x_post = array["gradXPostOptional"];
  args.hc_eps = call.attr<float>("hcEps");
  args.grad_x = array["gradX"];
  args.grad_phi = array["gradPhi"];
  args.grad_alpha = array["gradAlpha"];
  args.grad_bias = array["gradBias"];
  args.grad_gamma = array["gradGamma"];
  if (hf32) {
    pre_backward(args, gradients_of_arguments(args), true);
  } else {
    mhc::pre_backward(args);
  }
  array.write();
}

void fill_with_zeros(const Tensor &tensor) {
  DenseOutput zeros(&tensor);
  std::memset(zeros.get<void>(), 0, static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
  zeros.write();
}

}  // namespace

namespace kernels {

Plan mhc_pre(Call call) {
  const Checker check(call);
  check.not_null({"x", "phi", "alpha", "bias", "hIn", "hPost"});
  for (const char *name : {"x", "phi", "alpha", "bias"}) {
    require(!call.tensor(name)->empty(), kInvalid, call.where(name), " is empty: ", call.tensor(name)->describe());
  }
  check.ranks("input");
  const std::int64_t gates = call.tensor("alpha")->shape[0];
  require(gates == 2 || gates == 3, kInvalid, call.where("alpha"), " has ", gates, " elements, not 2 or 3");
  if (gates == 3) check.not_null({"hRes"});
  if (gates == 2) {
    call.leave_out("hRes");  // there may be one, but nobody looks at it
    call.set_size("F", 2 * call.size("N"));
  }
  check.ranks("output");
  check.all_or_none({"invRmsOptional", "hMixOptional", "hPreOptional"});
  check.streams_within({4, 6, 8}, kInvalid);  // the parameter check knows no soc
  check.hidden_multiple(16, kInvalid);
  call.accept_shape("alpha");
  check.shapes();
  check.dtypes();
  check.public_formats("");
  check.impl_mode();
  const contract::Limits &limits = check.limits();
  check.hidden_within(limits, kTilingError);
  const PreForm form{in_hf32(call, limits), gates == 2};
  return {[=] { compute_forward(call, form); }, workspace(call)};
}

Plan mhc_pre_backward(Call call) {
  const Checker check(call);
  check.not_null();
  const Tensor *unused = nullptr;
  if (call.given("gammaOptional")) {
    check.not_null({"gradGamma"});
  } else {
    unused = call.tensor("gradGamma");
    call.leave_out("gradGamma");  // not looked at
  }
  check.not_empty("input");
  check.ranks("");
  check.shapes();
  check.dtypes();
  check.public_formats("input");
  check.impl_mode();
  const contract::Limits &limits = check.limits();
  check.streams_within(limits.streams, kTilingError);  // in the vendor's tiling, not in its parameter check
  check.hidden_within(limits, kTilingError);
  check.hidden_multiple(limits.hidden_multiple, kTilingError);
  return {[=, hf32 = in_hf32(call, limits)] {
            compute_backward(call, hf32);
            // The document says that gradGamma is not written without gamma. The vendor's client passes a tensor that it
            // never filled, and its tests expect zeros in it. Zeros do for both.
            if (unused != nullptr) fill_with_zeros(*unused);
          },
          workspace(call)};
}

}  // namespace kernels
}  // namespace host
