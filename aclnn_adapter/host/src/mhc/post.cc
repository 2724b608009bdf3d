// aclnnMhcPost and aclnnMhcPostBackward (ACLNN_SPEC.md sections 3 and 4).
#include "framework/dense.h"
#include "framework/operator.h"
#include "mhc.h"
#include "mhc/checks.h"

namespace host {
namespace {

bool h_res_may_be_null() { return soc_version() == "ascend950"; }

Plan post(const Tensor *x, const Tensor *h_res, const Tensor *h_out, const Tensor *h_post, Tensor *out) {
  Checker check("aclnnMhcPost", {x, h_res, h_out, h_post, out});
  require(h_res != nullptr || h_res_may_be_null(), kRuntimeError, check.where("hRes"), " is null, which ",
          soc_version(), " does not take");
  check.not_null();
  check.same_format("x", "out");
  check.dtypes();
  if (check.any_input_empty()) return {[] {}};
  check.ranks("");
  check.shapes();
  const contract::Limits &limits = check.limits();
  check.streams_within(limits, kInnerNullPointer);
  check.hidden_within(limits, kInnerNullPointer);
  check.hidden_multiple(limits, kInnerNullPointer);
  return {[=, element = check.element(), sizes = check.sizes()] {
    DenseInput dense_x(x), dense_h_res(h_res), dense_h_out(h_out), dense_h_post(h_post);
    DenseOutput dense_out(out);
    mhc::PostForward args{};
    args.element = element;
    args.sizes = sizes;
    args.x = dense_x.get<void>();
    args.h_res = dense_h_res.get<float>();
    args.h_out = dense_h_out.get<void>();
    args.h_post = dense_h_post.get<float>();
    args.out = dense_out.get<void>();
    mhc::post_forward(args);
    dense_out.write();
  }};
}

Plan post_backward(const Tensor *grad_output, const Tensor *x, const Tensor *h_res, const Tensor *h_out,
                   const Tensor *h_post, Tensor *grad_x, Tensor *grad_h_res, Tensor *grad_h_out, Tensor *grad_h_post) {
  Checker check("aclnnMhcPostBackward",
                {grad_output, x, h_res, h_out, h_post, grad_x, grad_h_res, grad_h_out, grad_h_post});
  check.not_null();
  if (!h_res_may_be_null()) check.not_null({"hRes"});
  check.not_empty("input");
  check.dtypes();
  check.ranks("");
  check.shapes();
  check.formats("input");
  const contract::Limits &limits = check.limits();
  check.streams_within(limits, kInvalid);
  check.hidden_within(limits, kInvalid);
  check.hidden_multiple(limits, kInvalid);
  return {[=, element = check.element(), sizes = check.sizes()] {
    DenseInput dense_grad_output(grad_output), dense_x(x), dense_h_res(h_res), dense_h_out(h_out),
      dense_h_post(h_post);
    DenseOutput dense_grad_x(grad_x), dense_grad_h_res(grad_h_res), dense_grad_h_out(grad_h_out),
      dense_grad_h_post(grad_h_post);
    mhc::PostBackward args{};
    args.element = element;
    args.sizes = sizes;
    args.grad_output = dense_grad_output.get<void>();
    args.x = dense_x.get<void>();
    args.h_res = dense_h_res.get<float>();
    args.h_out = dense_h_out.get<void>();
    args.h_post = dense_h_post.get<float>();
    args.grad_x = dense_grad_x.get<void>();
    args.grad_h_res = dense_grad_h_res.get<float>();
    args.grad_h_out = dense_grad_h_out.get<void>();
    args.grad_h_post = dense_grad_h_post.get<float>();
    mhc::post_backward(args);
    for (auto *output : {&dense_grad_x, &dense_grad_h_res, &dense_grad_h_out, &dense_grad_h_post}) output->write();
  }};
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnMhcPost, host::post)
ACLNN_OPERATOR(aclnnMhcPostBackward, host::post_backward)
