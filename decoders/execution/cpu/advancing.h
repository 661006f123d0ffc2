// What was committed, told to an EAGLE drafter: decoders.propose.drafters.eagle.EagleSession.advance.
//
// The drafter has one layer, so of the codes before the last only keys and values are of use: those are
// all that is computed of them. The last one's row is a forward of a single query.
#pragma once

#include "drafting.h"

extern "C" {

struct Advance {
  Expand drafter;         // its layer has R rows and 1 query; root_slot, features, seen are written at 0
  const uint8_t* prefix;  // [R, S], nonzero where a place of the prefix is valid
  long first, told;       // slot of an image's first code; T
  const void* hidden;     // [R, T, D]
  const int64_t *codes, *count, *start;  // [B, T], [B], [B]
  int64_t* root_code;     // [B]
  int64_t* order;         // [R T]
  void* inputs;           // [R T, D] in the drafter's type; the first R rows are the layer's input
  float* pairs;           // [R T, 2 D], keys and values
};

}  // extern "C"

namespace {

// Whether counts are in 1..T, and all codes and slots in their tables.
bool fits(const Advance& a) {
  const Expand& e = a.drafter;
  bool all = within(a.count, e.batch, a.told + 1) && within(a.start, e.batch, e.layer.slots);
  for (long b = 0; b < e.batch && all; ++b) {
    all &= a.count[b] >= 1 && a.first + a.start[b] + a.count[b] <= e.layer.slots;
    all &= all && within(a.codes + b * a.told, a.count[b], e.vocab);
  }
  return all;
}

// The real ones of the R T places, the last of every row first; returns how many they are.
long arrange(const Advance& a) {
  const Expand& e = a.drafter;
  long count = 0;
  for (long r = 0; r < e.layer.rows; ++r) a.order[count++] = r * a.told + a.count[r % e.batch] - 1;
  for (long r = 0; r < e.layer.rows; ++r)
    for (long t = 0; t + 1 < a.count[r % e.batch]; ++t) a.order[count++] = r * a.told + t;
  for (long r = 0; r < e.layer.rows; ++r) {
    const long b = r % e.batch, last = a.count[b] - 1;
    const_cast<int64_t*>(e.root_slot)[r] = a.first + a.start[b] + last;
    a.root_code[b] = a.codes[b * a.told + last];
  }
  return count;
}

// Keys and values of rows [R, rows) of the inputs.
template <class T>
void append_earlier(const Advance& a, long rows, int self, int threads) {
  const Expand& e = a.drafter;
  const Forward& f = e.layer;
  const long D = f.width, R = f.rows, d = D / f.heads, panels = D / LANES;
  const long plane = R * f.heads * f.slots * d;
  float* pairs = a.pairs;
  const T *inputs = static_cast<const T*>(a.inputs) + R * D, *w = static_cast<const T*>(f.weights[0].wqkv);
  product(inputs, D, w, D, 0, rows - R, panels + share(2 * panels, self, threads),
          panels + share(2 * panels, self + 1, threads),
          [=](long m, long panel, int count, const V* sums) {
            for (int n = 0; n < count; ++n) store(pairs + m * 2 * D + (panel - panels + n) * LANES, sums[n]);
          });
  meet(f, threads);
  const long items = (rows - R) * f.heads;
  for (long i = share(items, self, threads); i < share(items, self + 1, threads); ++i) {
    const long m = i / f.heads, h = i % f.heads;
    const long r = a.order[R + m] / a.told, t = a.order[R + m] % a.told;
    const long slot = a.first + a.start[r % e.batch] + t;
    const float* key = pairs + m * 2 * D + h * d;
    T* keys = static_cast<T*>(f.cache) + ((r * f.heads + h) * f.slots + slot) * d;
    append(f.rope + (slot < f.places ? slot : f.places - 1) * d, key, key + D, d, keys, keys + plane);
  }
  meet(f, threads);
}

template <class T>
void advance_part(const Advance& a, long rows, int self, int threads) {
  const Expand& e = a.drafter;
  const Forward& f = e.layer;
  const long D = f.width, S = f.slots, R = f.rows;
  T *mixed = static_cast<T*>(e.mixed), *features = static_cast<T*>(e.features);
  const T *embedding = static_cast<const T*>(e.embedding), *output = static_cast<const T*>(f.output);
  for (long m = share(rows, self, threads); m < share(rows, self + 1, threads); ++m) {
    const long r = a.order[m] / a.told, t = a.order[m] % a.told;
    const long code = a.codes[r % e.batch * a.told + t];
    const long token = e.tokens == nullptr ? code : e.tokens[code];
    std::memcpy(mixed + m * 2 * D, embedding + token * D, D * sizeof(T));
    std::memcpy(mixed + m * 2 * D + D, static_cast<const T*>(a.hidden) + a.order[m] * D, D * sizeof(T));
  }
  for (long r = share(R, self, threads); r < share(R, self + 1, threads); ++r) {
    uint8_t* seen = e.seen + r * e.nodes * S;
    std::memcpy(seen, a.prefix + r * S, S);
    std::memset(seen + a.first, 1, e.root_slot[r] + 1 - a.first);
  }
  meet(f, threads);
  mix_part<T>(e, rows, static_cast<T*>(a.inputs), self, threads);
  meet(f, threads);
  if (rows > R) append_earlier<T>(a, rows, self, threads);
  work<T>(f, Scratch(f), self, threads);
  meet(f, threads);
  for (long r = share(R, self, threads); r < share(R, self + 1, threads); ++r)
    std::memcpy(features + r * e.nodes * D, output + r * D, D * sizeof(T));
  logits_part(output, static_cast<const T*>(e.head), R, D, e.vocab, static_cast<int>(R / e.batch), e.cfg,
              e.raw, e.logits, self, threads);
}

template <class T>
void advance(const Advance& a) {
  const long rows = arrange(a);
#pragma omp parallel num_threads(a.drafter.layer.threads)
  advance_part<T>(a, rows, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace
