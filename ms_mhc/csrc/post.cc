// SPDX-License-Identifier: Apache-2.0
// MhcPost: tokens are independent, threads share nothing.
#include <algorithm>

#include "element.h"
#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace mhc {
namespace {

template <typename Work>
void for_blocks(int64_t tokens, const Work &work) {
  const int64_t blocks = (tokens + kTokenBlock - 1) / kTokenBlock;
  Threads threads(threads_for(blocks));
  threads.run([&] {
    threads.share_as_they_come(
        blocks, [&](int64_t block) { work(block * kTokenBlock, std::min((block + 1) * kTokenBlock, tokens)); });
  });
}

}  // namespace

void post_forward(const PostForward &args) {
  const int64_t row = args.sizes.hidden * bytes_of(args.element);
  const bool stream = past_caches(args.out, args.sizes.tokens * args.sizes.streams, row);
  const Kernels &run = kernels();
  for_blocks(args.sizes.tokens, [&](int64_t begin, int64_t end) { run.post_forward(args, begin, end, stream); });
}

void post_backward(const PostBackward &args) {
  const int64_t row = args.sizes.hidden * bytes_of(args.element);
  const bool stream = past_caches(args.grad_x, args.sizes.tokens * args.sizes.streams, row) && aligned(args.grad_h_out);
  const Kernels &run = kernels();
  for_blocks(args.sizes.tokens, [&](int64_t begin, int64_t end) { run.post_backward(args, begin, end, stream); });
}

}  // namespace mhc
