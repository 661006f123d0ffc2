// From logits to a distribution and a code of it: decoders.distribution.probabilities and
// decoders.noise.sample.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

extern "C" {

// How a distribution is made of logits: temperature (0: greedy, where it is the raw softmax), then top-k
// (0: all codes), then top-p (1: all mass).
struct Filter {
  float temperature, top_p;
  long top_k;
};

}  // extern "C"

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

// The smallest of the `count` largest values.
inline float least_of_top(const float* values, long size, long count) {
  thread_local std::vector<float> copy;
  copy.assign(values, values + size);
  std::nth_element(copy.begin(), copy.begin() + (count - 1), copy.end(), std::greater<float>());
  return copy[count - 1];
}

// Codes of p [V] behind whose likelier ones there is mass top_p become impossible; p sums to one again.
inline void keep_mass(float* p, long size, float top_p) {
  thread_local std::vector<int> order;
  order.clear();
  for (long i = 0; i < size; ++i)
    if (p[i] > 0) order.push_back(static_cast<int>(i));
  std::stable_sort(order.begin(), order.end(), [=](int i, int j) { return p[i] > p[j]; });
  double reached = 0, kept = 0;
  for (int i : order) {
    reached += p[i];
    if (static_cast<float>(reached) - p[i] >= top_p) p[i] = 0;
    kept += p[i];
  }
  const float sum = static_cast<float>(kept);
  for (int i : order) p[i] /= sum;
}

// p [V] of guided logits; false where a logit is NaN or infinite (p is then of no use).
bool probabilities(const float* logits, const Filter& f, long size, float* p) {
  const float temperature = f.temperature > 0 ? f.temperature : 1.f;
  const bool cut = f.temperature > 0 && f.top_k > 0 && f.top_k < size;
  if (cut) {
    const float least = least_of_top(logits, size, f.top_k);
    if (!std::isfinite(least)) return softmax(logits, temperature, size, p), false;
    thread_local std::vector<float> kept;
    kept.resize(size);
    bool finite = true;
    for (long i = 0; i < size; ++i) {
      finite &= std::isfinite(logits[i]);
      kept[i] = logits[i] < least ? -INFINITY : logits[i];
    }
    finite &= softmax(kept.data(), temperature, size, p);
    if (!finite) return false;
  } else if (!softmax(logits, temperature, size, p)) {
    return false;
  }
  if (f.temperature > 0 && f.top_p < 1) keep_mass(p, size, f.top_p);
  return true;
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
