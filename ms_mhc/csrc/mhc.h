// The mHC operators on a CPU: mathematics only. Knows neither MindSpore nor CANN. A call that fails for want of memory
// throws std::bad_alloc.
//
// All tensors are contiguous, row-major. T is the number of tokens, N of streams, D the hidden size, F of gates.
// Tensors of type `void` have the element type `Element`; all others are float. Arithmetic is fp32 inside, with one
// conversion on the way in and one, rounding to nearest even, on the way out.
#pragma once

#include <cstdint>

namespace mhc {

enum class Element { kFloat32, kFloat16, kBFloat16 };

struct Sizes {
  int64_t tokens;
  int64_t streams;
  int64_t hidden;  // not used by Sinkhorn
};

// F, the rows of phi
[[gnu::always_inline]] inline constexpr int64_t num_gates(int64_t streams) { return streams * streams + 2 * streams; }

struct PreForward {
  Element element;
  Sizes sizes;
  const void *x;       // [T, N, D]
  const float *phi;    // [F, N*D], rows: pre N, post N, res N*N
  const float *alpha;  // [3]
  const float *bias;   // [F]
  const float *gamma;  // [N, D], null means ones
  float norm_eps;
  float hc_eps;
  void *h_in;      // [T, D]
  float *h_post;   // [T, N]
  float *h_res;    // [T, N, N]
  float *inv_rms;  // [T], may be null
  float *h_mix;    // [T, F], may be null
  float *h_pre;    // [T, N], may be null
};

struct PreBackward {
  Element element;
  Sizes sizes;
  const void *x;
  const float *phi;
  const float *alpha;
  const void *grad_h_in;     // [T, D]
  const float *grad_h_post;  // [T, N]
  const float *grad_h_res;   // [T, N, N]
  const float *inv_rms;
  const float *h_mix;
  const float *h_pre;
  const float *h_post;
  const float *gamma;       // null means ones
  const void *grad_x_post;  // [T, N, D], null means zeros
  float hc_eps;
  void *grad_x;       // [T, N, D]
  float *grad_phi;    // [F, N*D]
  float *grad_alpha;  // [3]
  float *grad_bias;   // [F]
  float *grad_gamma;  // [N, D], may be null when gamma is
};

// out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]
struct PostForward {
  Element element;
  Sizes sizes;
  const void *x;        // [T, N, D]
  const float *h_res;   // [T, N, N], null means the identity
  const void *h_out;    // [T, D]
  const float *h_post;  // [T, N]
  void *out;            // [T, N, D]
};

struct PostBackward {
  Element element;
  Sizes sizes;
  const void *grad_output;  // [T, N, D]
  const void *x;
  const float *h_res;  // null means the identity
  const void *h_out;
  const float *h_post;
  void *grad_x;        // [T, N, D]
  float *grad_h_res;   // [T, N, N], computed even when h_res is null; may be null
  void *grad_h_out;    // [T, D]
  float *grad_h_post;  // [T, N]
};

enum class Recipe {
  kDeepSeekV4,  // softmax + eps, one column step, then num_iters - 1 row and column steps
  kPaper,       // exp(x - rowmax), then num_iters row and column steps
};

struct SinkhornForward {
  Sizes sizes;
  const float *x;  // [T, N, N]
  float eps;
  int64_t num_iters;
  Recipe recipe;
  float *output;  // [T, N, N]
};

// The exact derivative of what SinkhornForward computed, by recomputing the iterations of each token.
struct SinkhornBackward {
  Sizes sizes;
  const float *x;
  const float *grad_output;  // [T, N, N]
  float eps;
  int64_t num_iters;
  Recipe recipe;
  float *grad_x;  // [T, N, N]
};

// MhcPre, then Sinkhorn on its h_res: what is called h_res and grad_h_res below is that of the mixed matrices.
struct PreSinkhornForward {
  PreForward pre;
  float eps;  // of Sinkhorn
  int64_t num_iters;
  Recipe recipe;
};

// The logits are computed again, from h_mix, inv_rms, alpha and bias.
struct PreSinkhornBackward {
  PreBackward pre;
  const float *bias;  // [F]
  float eps;
  int64_t num_iters;
  Recipe recipe;
};

void pre_forward(const PreForward &args);
void pre_backward(const PreBackward &args);
void post_forward(const PostForward &args);
void post_backward(const PostBackward &args);
void sinkhorn_forward(const SinkhornForward &args);
void sinkhorn_backward(const SinkhornBackward &args);
void pre_sinkhorn_forward(const PreSinkhornForward &args);
void pre_sinkhorn_backward(const PreSinkhornBackward &args);

}  // namespace mhc
