// Attention of one head over the slots of a cache that its queries may see.
#pragma once

#include "vectors.h"

namespace {

constexpr int GROUP = 12;  // queries that attend together: their scores stay near
constexpr int TOGETHER = 6, WIDE = 4;  // queries and vectors of a value that are summed in registers

// sum + the products of a head's numbers, d = VECTORS * 16 of them.
template <int VECTORS>
inline V dot(const float* a, const float* b) {
  V sum = {};
  for (int v = 0; v < VECTORS; ++v) sum += load(a + v * LANES) * load(b + v * LANES);
  return sum;
}
template <int VECTORS>
inline V dot(const uint16_t* a, const uint16_t* b) {
  V sum = {};
#if defined(__AVX512BF16__)
  if constexpr (VECTORS % 2 == 0) {
    for (int v = 0; v < VECTORS; v += 2) {
      __m512bh x, y;
      std::memcpy(&x, a + v * LANES, sizeof x);
      std::memcpy(&y, b + v * LANES, sizeof y);
      sum = (V)_mm512_dpbf16_ps((__m512)sum, x, y);
    }
    return sum;
  }
#endif
  for (int v = 0; v < VECTORS; ++v) sum += load(a + v * LANES) * load(b + v * LANES);
  return sum;
}

// Lane i: query times key `first` + i; keys from `limit` on are not there, and stand for the last.
template <int VECTORS, class T>
inline V scores_of(const T* query, const T* keys, long first, long limit) {
  constexpr long d = VECTORS * LANES;
  V sums[LANES];
  if (first + LANES <= limit)
    for (int i = 0; i < LANES; ++i) sums[i] = dot<VECTORS>(query, keys + (first + i) * d);
  else
    for (int i = 0; i < LANES; ++i)
      sums[i] = dot<VECTORS>(query, keys + (first + i < limit ? first + i : limit - 1) * d);
  return totals(sums);
}

// scores [size] become e to the power of what they are above their largest; returns their sum.
inline float exponentials(float* scores, long size) {
  V top = V{} - INFINITY, mass = {};
  for (long s = 0; s < size; s += LANES) top = larger(top, load(scores + s));
  top = larger(top, halves(top));
  top = larger(top, quarters(top));
  top = larger(top, pairs(top));
  const float most = top[0] > top[1] ? top[0] : top[1];
  for (long s = 0; s < size; s += LANES) {
    const V e = expo(load(scores + s) - most);
    store(scores + s, e);
    mass += e;
  }
  return total(mass);
}

// out [COUNT, N * 16] = shares [COUNT, slots] times values [slots, N * 16], over the shares' sums; rows of
// shares, values and out are `apart`, d and `stride` numbers apart. Sums in the order of the slots.
template <int COUNT, int N, class T>
inline void mix(const float* shares, long apart, const float* sums, const T* values, long d, long slots,
                T* out, long stride) {
  V acc[COUNT][N] = {};
  for (long s = 0; s < slots; ++s) {
    V value[N];
    if constexpr (N == 1) value[0] = load(values + s * d);
    else
      for (int v = 0; v < N; v += 2) load_both(values + s * d + v * LANES, value + v);
    for (int t = 0; t < COUNT; ++t)
      for (int v = 0; v < N; ++v) acc[t][v] += shares[t * apart + s] * value[v];
  }
  for (int t = 0; t < COUNT; ++t) {
    const float by = 1.f / sums[t];
    if constexpr (N == 1) store(out + t * stride, acc[t][0] * by);
    else
      for (int v = 0; v < N; v += 2)
        store_both(out + t * stride + v * LANES, acc[t][v] * by, acc[t][v + 1] * by);
  }
}

template <int N, class T>
inline void mix_some(long count, const float* shares, long apart, const float* sums, const T* values,
                     long d, long slots, T* out, long stride) {
  switch (count) {
    case 1: return mix<1, N>(shares, apart, sums, values, d, slots, out, stride);
    case 2: return mix<2, N>(shares, apart, sums, values, d, slots, out, stride);
    case 3: return mix<3, N>(shares, apart, sums, values, d, slots, out, stride);
    case 4: return mix<4, N>(shares, apart, sums, values, d, slots, out, stride);
    case 5: return mix<5, N>(shares, apart, sums, values, d, slots, out, stride);
    default: return mix<TOGETHER, N>(shares, apart, sums, values, d, slots, out, stride);
  }
}

// `count` (at most GROUP) queries [., d] of one head against its slots 0..used-1, used a multiple of 16 of
// which those from `limit` on are not there and closed; closed [count, apart] is 0 where a query looks and
// -infinity where not; scores [GROUP, apart] is used. Rows of out are `stride` apart.
template <int VECTORS, class T>
void attend(const T* query, long count, const T* keys, const T* values, const float* closed, long apart,
            long used, long limit, float* scores, T* out, long stride) {
  constexpr long d = VECTORS * LANES;
  constexpr int N = VECTORS < WIDE ? VECTORS : WIDE;
  const float scale = 1.f / std::sqrt(static_cast<float>(d));
  for (long s = 0; s < used; s += LANES)
    for (long t = 0; t < count; ++t)
      store(scores + t * apart + s, scores_of<VECTORS>(query + t * d, keys, s, limit) * scale +
                                        load(closed + t * apart + s));
  float sums[GROUP];
  for (long t = 0; t < count; ++t) sums[t] = exponentials(scores + t * apart, used);
  const long parts = (count + TOGETHER - 1) / TOGETHER, slots = used < limit ? used : limit;
  for (long i = 0; i < parts; ++i) {
    const long t = count * i / parts, more = count * (i + 1) / parts - t;
    for (long v = 0; v < d; v += N * LANES)
      mix_some<N>(more, scores + t * apart, apart, sums + t, values + v, d, slots, out + t * stride + v,
                  stride);
  }
}

template <class T>
void attend_width(long d, const T* query, long count, const T* keys, const T* values, const float* closed,
                  long apart, long used, long limit, float* scores, T* out, long stride) {
  switch (d / LANES) {
    case 1: return attend<1>(query, count, keys, values, closed, apart, used, limit, scores, out, stride);
    case 2: return attend<2>(query, count, keys, values, closed, apart, used, limit, scores, out, stride);
    case 4: return attend<4>(query, count, keys, values, closed, apart, used, limit, scores, out, stride);
    default: return attend<8>(query, count, keys, values, closed, apart, used, limit, scores, out, stride);
  }
}

}  // namespace
