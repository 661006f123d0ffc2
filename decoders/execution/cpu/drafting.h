// Guided logits, and a call of an EAGLE drafter on the nodes of a level.
#pragma once

#include "layers.h"

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

extern "C" {

// One call of an EAGLE drafter on w nodes of a level (decoders.propose.drafters.eagle.EagleSession.expand).
struct Expand {
  Forward layer;             // R rows, w queries; its input, output, places, slots and mask lie in memory
                             // that is given here, and are written
  long batch, nodes;         // B; N + 1 places of a session
  const void* embedding;     // [embedded, D]
  long embedded;
  const int64_t* tokens;     // [V] rows of the embedding; null: the codes themselves
  const void *fc, *fc_bias;  // packed [D, 2 D]; [D] or null
  const void* head;          // packed [V, D]
  long vocab;
  float cfg;
  void* features;            // [R, N + 1, D]
  uint8_t* seen;             // [R, N + 1, S]
  const int64_t* root_slot;  // [R]
  void* mixed;               // [R, w, 2 D]
  float* raw;                // [R, w, V]
  float* logits;             // [B, w, V]
};

}  // extern "C"

namespace {

// The layer's input [M, D]: `fc` of M rows of [embedding ; feature]. Part `self` of `threads`.
template <class T>
void mix_part(const Expand& e, long rows, T* input, int self, int threads) {
  const long D = e.layer.width;
  const T* bias = static_cast<const T*>(e.fc_bias);
  product(static_cast<const T*>(e.mixed), 2 * D, static_cast<const T*>(e.fc), 2 * D, 0, rows,
          share(D / LANES, self, threads), share(D / LANES, self + 1, threads),
          [=](long m, long panel, int count, const V* sums) {
            for (int n = 0; n < count; ++n) {
              const long o = (panel + n) * LANES;
              store(input + m * D + o, bias == nullptr ? sums[n] : sums[n] + load(bias + o));
            }
          });
}

// A node to draft on from: its code, and its own and its parent's place among the session's nodes.
struct Node {
  int64_t code;
  long place, parent;
};

// Drafts on from the w = f.queries nodes `of(b, i)` of every image, all at one depth: part `self` of
// `threads`. The logits [B, w, V] are whole once the threads have met.
template <class T, class Of>
void expand_part(const Expand& e, const Forward& f, long depth, Of of, int self, int threads) {
  const long D = f.width, w = f.queries, S = f.slots;
  T* mixed = static_cast<T*>(e.mixed);
  T* features = static_cast<T*>(e.features);
  const T *embedding = static_cast<const T*>(e.embedding), *output = static_cast<const T*>(f.output);
  uint8_t* mask = const_cast<uint8_t*>(f.mask);
  int64_t *place = const_cast<int64_t*>(f.place), *slot = const_cast<int64_t*>(f.slot);
  const long m0 = share(f.rows * w, self, threads), m1 = share(f.rows * w, self + 1, threads);
  for (long m = m0; m < m1; ++m) {
    const long r = m / w;
    const Node node = of(r % e.batch, m % w);
    const long token = e.tokens == nullptr ? node.code : e.tokens[node.code];
    std::memcpy(mixed + m * 2 * D, embedding + token * D, D * sizeof(T));
    std::memcpy(mixed + m * 2 * D + D, features + (r * e.nodes + node.parent) * D, D * sizeof(T));
    std::memcpy(mask + m * S, e.seen + (r * e.nodes + node.parent) * S, S);
    slot[m] = e.root_slot[r] + node.place;
    place[m] = e.root_slot[r] + depth;
    mask[m * S + slot[m]] = 1;
  }
  meet(f, threads);
  mix_part<T>(e, f.rows * w, static_cast<T*>(const_cast<void*>(f.input)), self, threads);
  meet(f, threads);
  work<T>(f, Scratch(f), self, threads);
  meet(f, threads);
  for (long m = m0; m < m1; ++m) {
    const long to = m / w * e.nodes + of(m / w % e.batch, m % w).place;
    std::memcpy(features + to * D, output + m * D, D * sizeof(T));
    std::memcpy(e.seen + to * S, mask + m * S, S);
  }
  logits_part(output, static_cast<const T*>(e.head), f.rows * w, D, e.vocab,
              static_cast<int>(f.rows / e.batch), e.cfg, e.raw, e.logits, self, threads);
}

}  // namespace
