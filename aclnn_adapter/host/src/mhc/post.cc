// aclnnMhcPost and aclnnMhcPostBackward (ACLNN_SPEC.md sections 3, 4 and 11).
#include "mhc/checks.h"
#include "mhc/entry.h"

namespace host {
namespace {

bool h_res_may_be_null() { return soc_version() == "ascend950"; }

void compute_forward(const Call &call) {
  const Arrays array(call);
  mhc::PostForward args{};
  args.element = call.element();
  args.sizes = call.sizes();
  args.x = array["x"];
  args.h_res = array["hRes"];
  args.h_out = array["hOut"];
  args.h_post = array["hPost"];
  args.out = array["out"];
  mhc::post_forward(args);
  array.write();
}

void compute_backward(const Call &call) {
  const Arrays array(call);
  mhc::PostBackward args{};
  args.element = call.element();
  args.sizes = call.sizes();
  args.grad_output = array["gradOutput"];
  args.x = array["x"];
  args.h_res = array["hRes"];
  args.h_out = array["hOut"];
  args.h_post = array["hPost"];
  args.grad_x = array["gradX"];
  args.grad_h_res = array["gradHRes"];
  args.grad_h_out = array["gradHOut"];
  args.grad_h_post = array["gradHPost"];
  mhc::post_backward(args);
  array.write();
}

}  // namespace

namespace kernels {

Plan mhc_post(Call call) {
  const Checker check(call);
  require(call.given("hRes") || h_res_may_be_null(), kRuntimeError, call.where("hRes"), " is null, which ",
          soc_version(), " does not take");
  check.not_null();
  check.public_formats({"x", "out"});
  check.dtypes();
  check.ranks("");
  check.shapes();
  if (check.any_input_empty()) return {[] {}};
  const contract::Limits &limits = check.limits();
  check.streams_within(limits.streams, kInnerNullPointer);
  check.hidden_within(limits, kInnerNullPointer);
  check.hidden_multiple(limits.hidden_multiple, kInnerNullPointer);
  return {[=] { compute_forward(call); }};
}

Plan mhc_post_backward(Call call) {
  const Checker check(call);
  check.not_null();
  if (!h_res_may_be_null()) check.not_null({"hRes"});
  check.not_empty("input");
  // Each gradient has the dtype of what it is the gradient of. That all three agree is the tiling's affair.
  for (auto names : {std::pair{"x", "gradX"}, {"hOut", "gradHOut"}}) check.dtypes({names.first, names.second});
  check.dtypes({"gradOutput", "hRes", "hPost", "gradHRes", "gradHPost"});
  check.ranks("");
  check.shapes();
  check.public_formats("input");
  const contract::Limits &limits = check.limits();
  check.streams_within(limits.streams, kInvalid);
  check.hidden_within(limits, kInvalid);
  check.hidden_multiple(limits.hidden_multiple, kInvalid);
  for (const char *name : {"x", "hOut"}) {
    const aclDataType own = call.tensor(name)->dtype, other = call.tensor("gradOutput")->dtype;
    require(own == other, kTilingError, call.where(name), " is ", dtype_name(own), ", not ", dtype_name(other),
            " as gradOutput");
  }
  return {[=] { compute_backward(call); }};
}

}  // namespace kernels
}  // namespace host
