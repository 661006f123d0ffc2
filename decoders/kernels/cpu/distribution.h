// From logits to a distribution and a code of it: decoders.distribution.probabilities without filters, and
// decoders.noise.sample.
#pragma once

#include "vectors.h"

namespace {

// Lanes of values from `at` on, `otherwise` past the end.
inline V lanes_of(const float* values, long at, long size, float otherwise) {
  if (at + LANES <= size) return load(values + at);
  V tail = V{} + otherwise;
  for (long i = at; i < size; ++i) tail[i - at] = values[i];
  return tail;
}

// p [V] = softmax(logits / temperature); false where a logit is NaN or infinite (p is then of no use).
bool softmax(const float* logits, float temperature, long size, float* p) {
  V top = V{} - INFINITY, mass = {};
  for (long i = 0; i < size; i += LANES) top = larger(top, lanes_of(logits, i, size, -INFINITY));
  float most = top[0];
  for (int i = 1; i < LANES; ++i) most = top[i] > most ? top[i] : most;
  most /= temperature;
  for (long i = 0; i < size; i += LANES) {
    const V e = expo(lanes_of(logits, i, size, -INFINITY) / temperature - most);
    if (i + LANES <= size) store(p + i, e);
    else
      for (long j = i; j < size; ++j) p[j] = e[j - i];
    mass += e;
  }
  const float sum = total(mass);
  for (long i = 0; i < size; ++i) p[i] /= sum;
  return std::isfinite(sum) && std::isfinite(most);
}

// The inverse of the distribution function at u in [0, 1): p [V] >= 0 need not sum to one; sums in double,
// as PyTorch sums them. Never a code of probability zero, unless all are.
long sample(const float* p, long size, float u) {
  double sum = 0;
  for (long i = 0; i < size; ++i) sum += p[i];
  constexpr float below_one = 1.f - 1.f / (1 << 23);
  const float threshold = (u < below_one ? u : below_one) * static_cast<float>(sum);
  double reached = 0;
  for (long i = 0; i < size; ++i) {
    reached += p[i];
    if (static_cast<float>(reached) > threshold) return i;
  }
  return size - 1;
}

// The first of the largest.
inline long argmax(const float* values, long size) {
  long best = 0;
  for (long i = 1; i < size; ++i) best = values[i] > values[best] ? i : best;
  return best;
}

}  // namespace
