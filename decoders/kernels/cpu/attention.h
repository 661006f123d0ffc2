// Attention of one head over the slots of a cache that a query may see.
#pragma once

#include "vectors.h"

namespace {

// COUNT (1 or 4) queries [., d], scaled, against slots 0..used-1 of one head, used a multiple of 4 of
// which those from `limit` on are not there and closed;
// closed [used, COUNT] is 0 where a query looks and -infinity where not. VECTORS = d / 16. Scores go to
// `scores` [used, COUNT] (and up to LANES more). Writes `real` rows of out, `stride` apart.
template <int COUNT, int VECTORS, class T>
void attend(const float* query, const T* keys, const T* values, const float* closed, long used,
            long limit, float* scores, T* out, long stride, int real) {
  constexpr long d = VECTORS * LANES;
  constexpr int STEP = QUERIES / COUNT;  // slots at once
  V q[COUNT][VECTORS];
  for (int t = 0; t < COUNT; ++t)
    for (int v = 0; v < VECTORS; ++v) q[t][v] = load(query + t * d + v * LANES);
  for (long s = 0; s < used; s += STEP) {
    V sum[QUERIES] = {};
    for (int i = 0; i < STEP; ++i)
      for (int v = 0; v < VECTORS; ++v) {
        const V k = load(keys + (s + i < limit ? s + i : limit - 1) * d + v * LANES);
        for (int t = 0; t < COUNT; ++t) sum[i * COUNT + t] += q[t][v] * k;
      }
    *reinterpret_cast<Q*>(scores + s * COUNT) =
        totals(sum[0], sum[1], sum[2], sum[3]) + *reinterpret_cast<const Q*>(closed + s * COUNT);
  }
  const long size = used * COUNT;
  for (long i = size; i < size + LANES; ++i) scores[i] = -INFINITY;
  V top = V{} - INFINITY, mass = {};
  for (long i = 0; i < size; i += LANES) top = larger(top, load(scores + i));
  top = larger(top, halves(top));
  top = larger(top, quarters(top));  // lane i: over slots of query i % 4
  if (COUNT == 1) {
    for (int i = 1; i < QUERIES; ++i) top[0] = top[i] > top[0] ? top[i] : top[0];
    top = V{} + top[0];
  }
  // Four sums a query, of the slots that are equal modulo 4, whatever COUNT is.
  Q four = {};
  for (long i = 0; i < size; i += LANES) {
    const V e = expo(load(scores + i) - top);
    store(scores + i, e);
    if (COUNT == 1)
      for (int j = 0; j < LANES; j += QUERIES) four += *reinterpret_cast<const Q*>(scores + i + j);
    else mass += e;
  }
  mass += halves(mass);
  mass += quarters(mass);
  if (COUNT == 1) mass[0] = (four[0] + four[2]) + (four[1] + four[3]);
  V acc[COUNT][VECTORS] = {};
  for (long s = 0; s < used && s < limit; ++s)
    for (int v = 0; v < VECTORS; ++v) {
      const V value = load(values + s * d + v * LANES);
      for (int t = 0; t < COUNT; ++t) acc[t][v] += scores[s * COUNT + t] * value;
    }
  for (int t = 0; t < real; ++t)
    for (int v = 0; v < VECTORS; ++v)
      store(out + t * stride + v * LANES, acc[t][v] * (1.f / mass[t]));
}

template <int COUNT, class T>
void attend_width(long d, const float* query, const T* keys, const T* values, const float* closed,
                  long used, long limit, float* scores, T* out, long stride, int real) {
  switch (d / LANES) {
    case 1: return attend<COUNT, 1>(query, keys, values, closed, used, limit, scores, out, stride, real);
    case 2: return attend<COUNT, 2>(query, keys, values, closed, used, limit, scores, out, stride, real);
    case 4: return attend<COUNT, 4>(query, keys, values, closed, used, limit, scores, out, stride, real);
    default: return attend<COUNT, 8>(query, keys, values, closed, used, limit, scores, out, stride, real);
  }
}

}  // namespace
