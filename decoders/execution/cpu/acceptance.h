// The acceptance of a node's children: exact, LANTERN and LANTERN++ (METHODS 3, 4).
#pragma once

#include "vectors.h"

extern "C" {

// A rule: kind 0: exact, 1: bound = value, 2: bound = value p(x); table [V, >= k], rows `row` apart.
struct Rule {
  const int32_t* table;
  long row;
  int kind;
  float value;
  long k;
  long released;  // neighbours that the authors' residual sets to zero; 0: residual=paper
};

}  // extern "C"

namespace {

// Of one child; `admitted` is the size of A(x), the neighbours whose mass is moved onto it.
struct Verdict {
  float accept, strict, moved, bound;
  long admitted;
};

// Verdicts of a node's children, [K] each.
struct Judged {
  float *accept, *strict, *moved, *bound;
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

// The test of child x against p [V]; q null: deterministic children. Sums in double.
Verdict test_child(const float* p, const float* q, long x, const Rule& rule) {
  const float bound = rule.kind == 0 ? 0.f : (rule.kind == 1 ? rule.value : rule.value * p[x]);
  const int32_t* near = rule.kind == 0 ? nullptr : rule.table + x * rule.row;
  double mass = 0;
  long admitted = 0;
  for (; rule.kind != 0 && admitted < rule.k; ++admitted) {
    const double more = mass + p[near[admitted]];
    if (!(static_cast<float>(more) <= bound)) break;
    mass = more;
  }
  const float moved = static_cast<float>(mass);
  return {ratio(p[x] + moved, q, x), ratio(p[x], q, x), moved, bound < 1.f ? bound : 1.f, admitted};
}

// p_A without x or less q, into left [V]: norm of it is the residual (residual=paper).
void paper_residual(const float* p, const float* q, float* left, long x, const Verdict& found, const Rule& rule,
                    long vocab) {
  std::memcpy(left, p, vocab * sizeof(float));
  for (long i = 0; i < found.admitted; ++i) left[rule.table[x * rule.row + i]] = 0;
  left[x] = q == nullptr ? 0 : p[x] + found.moved;
  for (long i = 0; q != nullptr && i < vocab; ++i) left[i] = left[i] > q[i] ? left[i] - q[i] : 0.f;
}

// As the authors' code has it: where any neighbour was admitted all of the row go, from p with
// deterministic children, from q with drawn ones (METHODS 4).
void released_residual(const float* p, const float* q, float* left, long x, const Verdict& found,
                       const Rule& rule, long vocab) {
  const int32_t* near = rule.table + x * rule.row;
  for (long i = 0; i < vocab; ++i) left[i] = q == nullptr ? p[i] : (p[i] > q[i] ? p[i] - q[i] : 0.f);
  if (q == nullptr) left[x] = 0;
  for (long i = 0; found.admitted > 0 && i < rule.released; ++i) left[near[i]] = q == nullptr ? 0 : p[near[i]];
}

// After a rejection p becomes the rule's residual and q loses x; left [V] is work space. Where nothing is left,
// p stays (released: becomes uniform).
void reject_child(float* p, float* q, float* left, long x, const Verdict& found, const Rule& rule, long vocab) {
  (rule.released > 0 ? released_residual : paper_residual)(p, q, left, x, found, rule, vocab);
  if (normalise(left, vocab)) std::memcpy(p, left, vocab * sizeof(float));
  else if (rule.released > 0)
    for (long i = 0; i < vocab; ++i) p[i] = 1.f / vocab;
  if (q != nullptr) {
    q[x] = 0;
    if (!normalise(q, vocab)) std::memset(q, 0, vocab * sizeof(float));
  }
}

// All children of one node in order: decoders.verify.children.test_children. p [V] becomes the residual; q [V]
// loses every tested code.
void judge_node(float* p, float* q, float* left, const int64_t* codes, const uint8_t* valid, const Rule& rule,
                long vocab, long children, Judged out) {
  for (long j = 0; j < children; ++j) {
    out.accept[j] = out.strict[j] = out.moved[j] = out.bound[j] = 0;
    if (!valid[j]) continue;
    const Verdict found = test_child(p, q, codes[j], rule);
    out.accept[j] = found.accept;
    out.strict[j] = found.strict;
    out.moved[j] = found.moved;
    out.bound[j] = found.bound;
    reject_child(p, q, left, codes[j], found, rule, vocab);
  }
}

}  // namespace
