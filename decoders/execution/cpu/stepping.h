// Steps of plain next-code decoding: the last codes through the layers, and the codes after them.
#pragma once

#include "distribution.h"
#include "drafting.h"

extern "C" {

// Fields that say "written" are read in one step and written for the next.
struct NextCode {
  Forward body;             // R rows, one query; its codes, place, slot and mask are written
  long count;               // steps to take
  long batch, prefix, vocab;
  const int64_t* tokens;    // [V] rows of the embedding; null: the codes themselves
  const void* head;         // packed [V, D]
  float cfg;
  Filter filter;            // temperature 0: the code of the largest logit
  const float* uniform;     // image b, place i: at b * uniform_row + i * uniform_place
  long uniform_row, uniform_place, uniforms;
  int64_t *codes, *place;   // [B] the last codes, [1] place of the next ones; written
  int64_t* chosen;          // [B, recorded], the image so far; written
  long recorded;
  uint8_t* bad;             // [1] set where logits are not finite
  float *raw, *logits, *p;  // [R, V], [B, V], [B, V]
};

}  // extern "C"

namespace {

// Whether every code, place, slot and step of the `count` steps is in its table.
bool fits(const NextCode& n) {
  const long last = *n.place + n.count - 1, slot = n.prefix + last - 1;
  bool all = n.count > 0 && within(n.codes, n.batch, n.vocab);
  all &= n.tokens == nullptr ? n.vocab <= n.body.embedded : within(n.tokens, n.vocab, n.body.embedded);
  all &= *n.place > 0 && last < n.recorded && last < n.uniforms && slot < n.body.slots;
  return all;
}

// The code of guided logits [V] by its noise; `finite` is whether there was a distribution. p [V] is used.
inline long choose(const float* logits, const Filter& filter, float u, long size, float* p, bool* finite) {
  if (filter.temperature > 0) {
    *finite = probabilities(logits, filter, size, p);
    return sample(p, size, u);
  }
  *finite = true;
  for (long i = 0; i < size; ++i) *finite &= std::isfinite(logits[i]);
  return argmax(logits, size);
}

// What the layers read of rows [first, last): the last codes, where their keys go, who may look there.
void place_codes(const NextCode& n, long place, long first, long last) {
  const Forward& f = n.body;
  const long slot = n.prefix + place - 1;
  for (long r = first; r < last; ++r) {
    const long code = n.codes[r % n.batch];
    const_cast<int64_t*>(f.codes)[r] = n.tokens == nullptr ? code : n.tokens[code];
    const_cast<uint8_t*>(f.mask)[r * f.mask_row + slot] = 1;
    const_cast<int64_t*>(f.slot)[r] = slot;
  }
}

// Part `self` of `threads` of the step that chooses the codes at `place`.
template <class T>
void next_part(const NextCode& n, const Scratch& at, long place, int self, int threads) {
  const Forward& f = n.body;
  place_codes(n, place, share(f.rows, self, threads), share(f.rows, self + 1, threads));
  work<T>(f, at, self, threads);
  meet(f, threads);
  logits_part(static_cast<const T*>(f.output), static_cast<const T*>(n.head), f.rows, f.width, n.vocab,
              static_cast<int>(f.rows / n.batch), n.cfg, n.raw, n.logits, self, threads);
  meet(f, threads);
  for (long b = share(n.batch, self, threads); b < share(n.batch, self + 1, threads); ++b) {
    bool finite;
    const long at_b = b * n.vocab;
    const float u = n.uniform[b * n.uniform_row + place * n.uniform_place];
    n.codes[b] = choose(n.logits + at_b, n.filter, u, n.vocab, n.p + at_b, &finite);
    n.chosen[b * n.recorded + place] = n.codes[b];
    if (!finite) {
#pragma omp atomic write
      *n.bad = 1;
    }
  }
  meet(f, threads);
}

template <class T>
void next_codes(const NextCode& n) {
  const Scratch at(n.body);
  const long place = *n.place;
#pragma omp parallel num_threads(n.body.threads)
  for (long i = 0; i < n.count; ++i)
    next_part<T>(n, at, place + i, omp_get_thread_num(), omp_get_num_threads());
  *n.place = place + n.count;
}

}  // namespace
