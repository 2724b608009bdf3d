// SPDX-License-Identifier: Apache-2.0
// Sinkhorn: tokens are independent, threads share nothing.
#include <algorithm>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace mhc {
namespace {

// A multiple of any number of lanes.
constexpr int64_t kTokensAtOnce = 64;

template <typename Work>
void for_blocks(int64_t tokens, int64_t scratch_bytes, const Work &work) {
  const int64_t blocks = (tokens + kTokensAtOnce - 1) / kTokensAtOnce;
  const int count = threads_for(blocks);
  const ThreadScratch scratch(scratch_bytes, count);
  Threads threads(count);
  threads.run([&] {
    threads.share_as_they_come(blocks, [&](int64_t block) {
      const int64_t begin = block * kTokensAtOnce, end = std::min(begin + kTokensAtOnce, tokens);
      work(begin, end, scratch.of(this_thread()));
    });
  });
}

}  // namespace

void sinkhorn_forward(const SinkhornForward &args) {
  const Kernels &run = kernels();
  for_blocks(args.sizes.tokens, run.sinkhorn_forward_scratch(args),
             [&](int64_t begin, int64_t end, void *scratch) { run.sinkhorn_forward(args, begin, end, scratch); });
}

void sinkhorn_backward(const SinkhornBackward &args) {
  const Kernels &run = kernels();
  for_blocks(args.sizes.tokens, run.sinkhorn_backward_scratch(args),
             [&](int64_t begin, int64_t end, void *scratch) { run.sinkhorn_backward(args, begin, end, scratch); });
}

}  // namespace mhc
