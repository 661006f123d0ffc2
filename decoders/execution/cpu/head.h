// Guided logits of hidden states.
#pragma once

#include <cstring>

#include "products.h"

namespace {

// Guided logits: hidden [M, D] times head [V, D]; with guidance `raw` [M, V] has the rows [cond; uncond], and
// out [M / 2, V] becomes uncond + cfg (cond - uncond). Part `self` of `threads`: columns of its own.
template <class T>
void logits_part(const T* hidden, const T* head, long rows, long width, long vocab, int copies, float cfg,
                 float* raw, float* out, int self, int threads) {
  const long panels = (vocab + LANES - 1) / LANES;
  const long begin = share(panels, self, threads), end = share(panels, self + 1, threads);
  float* to = copies == 1 ? out : raw;
  product(hidden, width, head, width, 0, rows, begin, end, [=](long m, long panel, int count, const V* sums) {
    for (int n = 0; n < count; ++n) {
      const long at = (panel + n) * LANES;
      if (at + LANES <= vocab) store(to + m * vocab + at, sums[n]);
      else std::memcpy(to + m * vocab + at, sums + n, (vocab - at) * sizeof(float));
    }
  });
  if (copies == 1) return;
  const long last = end * LANES < vocab ? end * LANES : vocab;
  for (long m = 0; m < rows / copies; ++m) {
    const float *cond = raw + m * vocab, *uncond = cond + rows / copies * vocab;
    for (long o = begin * LANES; o < last; ++o) out[m * vocab + o] = uncond[o] + cfg * (cond[o] - uncond[o]);
  }
}

template <class T>
void logits(const T* hidden, const T* head, long rows, long width, long vocab, int copies, float cfg,
            float* raw, float* out, int threads) {
#pragma omp parallel num_threads(threads)
  logits_part(hidden, head, rows, width, vocab, copies, cfg, raw, out, omp_get_thread_num(),
              omp_get_num_threads());
}

}  // namespace
