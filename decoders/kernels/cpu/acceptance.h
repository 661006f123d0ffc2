// The acceptance of a node's children: exact, LANTERN and LANTERN++ (METHODS 3, 4).
#pragma once

#include "vectors.h"

namespace {

// All children of one node in order: decoders.verification.test_children with residual=paper
// (METHODS 3, 4). p [V] becomes the residual; q [V] (null: deterministic children) loses every tested
// code. kind 0: exact, 1: bound = value, 2: bound = value p(x). Sums in double.
struct Judged {
  float *accept, *strict, *moved, *bound;  // [K] each
};

inline float ratio(float mass, const float* q, long x) {
  const float at = q == nullptr ? 1.f : (q[x] > 0 ? mass / (q[x] > 1e-30f ? q[x] : 1e-30f) : 0.f);
  const float found = q == nullptr ? mass : at;
  return found < 1.f ? found : (found >= 1.f ? 1.f : found);  // NaN stays NaN
}

double sum_of(const float* values, long size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < size; ++i) sum += values[i];
  return sum;
}

// values / their sum; untouched where nothing is left, for which it returns false.
bool normalise(float* values, long size) {
  const float sum = static_cast<float>(sum_of(values, size));
  if (!(sum > 0)) return false;
  const float by = sum > 1e-30f ? sum : 1e-30f;
  for (long i = 0; i < size; ++i) values[i] /= by;
  return true;
}

void judge_node(float* p, float* q, float* left, const int64_t* codes, const uint8_t* valid,
                const int32_t* table, long row, int kind, float value, long k, long vocab, long children,
                Judged out) {
  for (long j = 0; j < children; ++j) {
    out.accept[j] = out.strict[j] = out.moved[j] = out.bound[j] = 0;
    if (!valid[j]) continue;
    const long x = codes[j];
    const float bound = kind == 0 ? 0.f : (kind == 1 ? value : value * p[x]);
    double mass = 0;
    long admitted = 0;
    const int32_t* near = kind == 0 ? nullptr : table + x * row;
    for (; kind != 0 && admitted < k; ++admitted) {
      const double more = mass + p[near[admitted]];
      if (!(static_cast<float>(more) <= bound)) break;
      mass = more;
    }
    const float moved = static_cast<float>(mass);
    out.accept[j] = ratio(p[x] + moved, q, x);
    out.strict[j] = ratio(p[x], q, x);
    out.moved[j] = moved;
    out.bound[j] = bound < 1.f ? bound : 1.f;
    std::memcpy(left, p, vocab * sizeof(float));
    for (long i = 0; i < admitted; ++i) left[near[i]] = 0;
    left[x] = p[x] + moved;
    if (q == nullptr) left[x] = 0;
    else
      for (long i = 0; i < vocab; ++i) left[i] = left[i] > q[i] ? left[i] - q[i] : 0.f;
    if (normalise(left, vocab)) std::memcpy(p, left, vocab * sizeof(float));
    if (q != nullptr) {
      q[x] = 0;
      if (!normalise(q, vocab)) std::memset(q, 0, vocab * sizeof(float));
    }
  }
}

}  // namespace
