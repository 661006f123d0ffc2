// From logits to a distribution and a code of it: decoders.distribution.probabilities without filters, and
// decoders.noise.sample.
#pragma once

#include "vectors.h"

namespace {

// Lanes of values from `at` on, `otherwise` past the end.
inline V lanes_of(const float* values, long at, long size, float otherwise) {
  if (at + LANES <= size) return load(values + at);
  float tail[LANES];
  for (long i = 0; i < LANES; ++i) tail[i] = at + i < size ? values[at + i] : otherwise;
  return load(tail);
}

// p [V] = softmax(logits / temperature); false where a logit is NaN or infinite (p is then of no use).
bool softmax(const float* logits, float temperature, long size, float* p) {
  V top = V{} - INFINITY, mass = {};
  for (long i = 0; i < size; i += LANES) top = larger(top, lanes_of(logits, i, size, -INFINITY));
  const float most = largest_lane(top) / temperature;
  for (long i = 0; i < size; i += LANES) {
    const V x = lanes_of(logits, i, size, -INFINITY);
    const V e = expo((temperature == 1 ? x : x / temperature) - most);
    if (i + LANES <= size) store(p + i, e);
    else std::memcpy(p + i, &e, (size - i) * sizeof(float));
    mass += e;
  }
  const float sum = total(mass);
  for (long i = 0; i < size; ++i) p[i] /= sum;
  return std::isfinite(sum) && std::isfinite(most);
}

// The inverse of the distribution function at u in [0, 1): p [V] >= 0 need not sum to one; sums in double,
// as PyTorch sums them (16 numbers at a time, to the last bits of a double the same). Never a code of
// probability zero, unless all are.
long sample(const float* p, long size, float u) {
  const long whole = size / LANES * LANES;
  W sums = {}, more;
  for (long i = 0; i < whole; i += LANES) {
    get(p + i, &more);
    sums += more;
  }
  double sum = total(sums);
  for (long i = whole; i < size; ++i) sum += p[i];
  constexpr float below_one = 1.f - 1.f / (1 << 23);
  const float threshold = (u < below_one ? u : below_one) * static_cast<float>(sum);
  double reached = 0;
  for (long i = 0; i < size;) {
    if (i < whole) get(p + i, &more);
    const double behind = i < whole ? reached + total(more) : INFINITY;
    if (static_cast<float>(behind) <= threshold) {
      reached = behind;
      i += LANES;
      continue;
    }
    for (const long end = i < whole ? i + LANES : size; i < end; ++i) {
      reached += p[i];
      if (static_cast<float>(reached) > threshold) return i;
    }
  }
  for (long i = size - 1; i > 0; --i)  // two sums, rounded apart
    if (p[i] > 0) return i;
  return size - 1;
}

// The first of the largest.
inline long argmax(const float* values, long size) {
  long best = 0;
  for (long i = 1; i < size; ++i) best = values[i] > values[best] ? i : best;
  return best;
}

}  // namespace
