// A step of plain next-code decoding: the last codes through the layers, and the codes after them.
#pragma once

#include "distribution.h"
#include "drafting.h"

extern "C" {

// Fields that say "written" are read in one step and written for the next.
struct NextCode {
  Forward body;             // R rows, one query; its codes, place, slot and mask are written
  long batch, prefix, vocab;
  const int64_t* tokens;    // [V] rows of the embedding; null: the codes themselves
  const void* head;         // packed [V, D]
  float cfg, temperature;   // temperature 0: the code of the largest logit
  const float* uniform;     // image b, place i: at b * uniform_row + i * uniform_place
  long uniform_row, uniform_place, uniforms;
  int64_t *codes, *place;   // [B] the last codes, [1] place of the next ones; written
  int64_t* chosen;          // [B, recorded], the image so far; written
  long recorded;
  int16_t* accepted;        // [B, most] drafts accepted a step: none; written
  long most;
  int64_t* steps;           // [1] taken so far; written
  uint8_t* bad;             // [1] set where logits are not finite
  float *raw, *logits, *p;  // [R, V], [B, V], [B, V]
};

}  // extern "C"

namespace {

// Whether every code, place, slot and step is in its table.
bool fits(const NextCode& n) {
  const long place = *n.place, slot = n.prefix + place - 1;
  bool all = within(n.codes, n.batch, n.tokens == nullptr ? n.body.embedded : n.vocab);
  for (long b = 0; b < n.batch && all && n.tokens != nullptr; ++b)
    all &= n.tokens[n.codes[b]] >= 0 && n.tokens[n.codes[b]] < n.body.embedded;
  all &= place > 0 && place < n.recorded && place < n.uniforms && slot < n.body.slots;
  return all && *n.steps >= 0 && *n.steps < n.most;
}

// The code of guided logits [V] by its noise; `finite` is whether there was a distribution. p [V] is used.
inline long choose(const float* logits, float temperature, float u, long size, float* p, bool* finite) {
  if (temperature > 0) {
    *finite = softmax(logits, temperature, size, p);
    return sample(p, size, u);
  }
  *finite = true;
  for (long i = 0; i < size; ++i) *finite &= std::isfinite(logits[i]);
  return argmax(logits, size);
}

// What the layers read: the last codes, where their keys go, and who may look there.
void place_codes(const NextCode& n) {
  const Forward& f = n.body;
  const long slot = n.prefix + *n.place - 1;
  for (long r = 0; r < f.rows; ++r) {
    const long code = n.codes[r % n.batch];
    const_cast<int64_t*>(f.codes)[r] = n.tokens == nullptr ? code : n.tokens[code];
    const_cast<uint8_t*>(f.mask)[r * f.mask_row + slot] = 1;
    const_cast<int64_t*>(f.slot)[r] = slot;
  }
}

template <class T>
void next_code(const NextCode& n) {
  const Forward& f = n.body;
  const Scratch at(f);
  const long place = *n.place, step = *n.steps;
  place_codes(n);
#pragma omp parallel num_threads(f.threads)
  {
    const int self = omp_get_thread_num(), threads = omp_get_num_threads();
    work<T>(f, at, self, threads);
    meet(f, threads);
    logits_part(static_cast<const T*>(f.output), static_cast<const T*>(n.head), f.rows, f.width, n.vocab,
                static_cast<int>(f.rows / n.batch), n.cfg, n.raw, n.logits, self, threads);
    meet(f, threads);
    for (long b = share(n.batch, self, threads); b < share(n.batch, self + 1, threads); ++b) {
      bool finite;
      const long at_b = b * n.vocab;
      const float u = n.uniform[b * n.uniform_row + place * n.uniform_place];
      n.codes[b] = choose(n.logits + at_b, n.temperature, u, n.vocab, n.p + at_b, &finite);
      n.chosen[b * n.recorded + place] = n.codes[b];
      n.accepted[b * n.most + step] = 0;
      if (!finite) {
#pragma omp atomic write
        *n.bad = 1;
      }
    }
  }
  *n.place = place + 1;
  *n.steps = step + 1;
}

}  // namespace
