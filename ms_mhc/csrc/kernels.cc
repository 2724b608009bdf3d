// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, with -DMHC_ISA=<its name> and the flags that allow it. Here the element type and
// the number of streams become template arguments.
#if !defined(MHC_ISA)
#define MHC_ISA baseline
#endif

#include "kernels.h"

#include "post_kernels.h"
#include "pre_backward_kernels.h"
#include "pre_forward_kernels.h"
#include "sinkhorn_kernels.h"

namespace mhc {
namespace MHC_ISA {

// work(Number<n>) for the numbers of streams that are known at compile time, work(Number<0>) for any other
template <typename Work>
inline void with_streams(int64_t n, const Work &work) {
  switch (n) {
    case 1: return work(Number<1>{});
    case 2: return work(Number<2>{});
    case 4: return work(Number<4>{});
    case 6: return work(Number<6>{});
    case 8: return work(Number<8>{});
    default: return work(Number<0>{});
  }
}

template <typename Work>
inline void with_element(Element element, const Work &work) {
  switch (element) {
    case Element::kFloat32: return work(float{});
    case Element::kFloat16: return work(Half{});
    case Element::kBFloat16: return work(BFloat16{});
  }
}

static void pre_forward(const PreForward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                        void *scratch) {
  with_element(a.element, [&](auto scalar) {
    with_streams(l.n, [&](auto n) { pre_forward_block<n.value, decltype(scalar)>(a, l, phi, begin, end, scratch); });
  });
}

static void pre_mix(const PreForward &a, const PreLayout &l, int64_t strip, float *mix, float *squares, int64_t step,
                    void *scratch) {
  with_element(a.element, [&](auto scalar) { pre_mix_strip<decltype(scalar)>(a, l, strip, mix, squares, step, scratch); });
}

static void pre_finish_tokens(const PreForward &a, const PreLayout &l, int64_t begin, int64_t end, const float *mixes,
                              const float *squares, int64_t step, float *weights, void *scratch) {
  with_streams(l.n, [&](auto n) { pre_finish<n.value>(a, l, begin, end, mixes, squares, step, weights, scratch); });
}

static void pre_columns(const PreForward &a, const PreLayout &l, int64_t token, int64_t begin, int64_t end,
                        const float *weights) {
  with_element(a.element, [&](auto scalar) {
    with_streams(l.n, [&](auto n) { pre_h_in<n.value, decltype(scalar)>(a, l, token, begin, end, weights); });
  });
}

static void pre_gates(const PreBackward &a, const PreLayout &l, int64_t begin, int64_t end, int64_t block,
                      const PreGates &gates) {
  with_element(a.element, [&](auto scalar) {
    with_streams(l.n, [&](auto n) { pre_backward_gates<n.value, decltype(scalar)>(a, l, begin, end, block, gates); });
  });
}

static void pre_tiles(const PreBackward &a, const PreLayout &l, const float *phi, int64_t begin, int64_t end,
                      int64_t first_tile, int64_t last_tile, const PreGates &gates, float *phi_products,
                      bool stream, void *scratch) {
  with_element(a.element, [&](auto scalar) {
    using Scalar = decltype(scalar);
    const auto run = stream ? pre_backward_tiles<true, Scalar> : pre_backward_tiles<false, Scalar>;
    run(a, l, phi, begin, end, first_tile, last_tile, gates, phi_products, scratch);
  });
}

static void post_forward(const PostForward &a, int64_t begin, int64_t end, bool stream) {
  with_element(a.element, [&](auto scalar) {
    with_streams(a.sizes.streams, [&](auto n) {
      using Scalar = decltype(scalar);
      const auto run = stream ? post_forward_tokens<n.value, true, Scalar> : post_forward_tokens<n.value, false, Scalar>;
      run(a, begin, end);
    });
  });
}

static void post_backward(const PostBackward &a, int64_t begin, int64_t end, bool stream) {
  with_element(a.element, [&](auto scalar) {
    with_streams(a.sizes.streams, [&](auto n) {
      using Scalar = decltype(scalar);
      const auto run = stream ? post_backward_tokens<n.value, true, Scalar> : post_backward_tokens<n.value, false, Scalar>;
      run(a, begin, end);
    });
  });
}

static void sinkhorn_forward(const SinkhornForward &a, int64_t begin, int64_t end, void *scratch) {
  with_streams(a.sizes.streams, [&](auto n) { sinkhorn_forward_tokens<n.value>(a, begin, end, scratch); });
}

static void sinkhorn_backward(const SinkhornBackward &a, int64_t begin, int64_t end, void *scratch) {
  with_streams(a.sizes.streams, [&](auto n) { sinkhorn_backward_tokens<n.value>(a, begin, end, scratch); });
}

extern const Kernels kernels;
const Kernels kernels = {
    pre_forward,
    pre_mix,
    pre_finish_tokens,
    pre_columns,
    pre_forward_scratch,
    pack_tile,
    pre_gates,
    pre_tiles,
    pre_backward_finish,
    pre_backward_scratch,
    post_forward,
    post_backward,
    sinkhorn_forward,
    sinkhorn_forward_scratch,
    sinkhorn_backward,
    sinkhorn_backward_scratch,
};

}  // namespace MHC_ISA
}  // namespace mhc
