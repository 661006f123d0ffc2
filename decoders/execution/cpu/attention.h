// Attention of one head over the slots of a cache that its queries may see.
#pragma once

#include "attention_tiles.h"
#include "products.h"

namespace {

#if defined(MATRIX_TILES)
constexpr int GROUP = TILE_ROWS;  // queries that attend together
#else
constexpr int GROUP = 12;  // their scores stay near
#endif
// Queries that are mixed together, at most, and vectors of a value that so many sum in registers.
constexpr int TOGETHER = NATIVE == LANES ? 6 : NATIVE == 8 ? 2 : 1;
constexpr int vectors_of_mix(int queries) { return NATIVE == LANES || queries == 1 ? 4 : 2; }

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
  for (int v = 0; v + 1 < VECTORS; v += 2) {
    sum += first(a + v * LANES) * first(b + v * LANES);
    sum += second(a + v * LANES) * second(b + v * LANES);
  }
  if constexpr (VECTORS % 2 != 0) sum += load(a + (VECTORS - 1) * LANES) * load(b + (VECTORS - 1) * LANES);
  return sum;
}

// Asks for `size` numbers that will be read soon (or are not there, which does no harm).
template <class T>
inline void ahead(const T* numbers, long size) {
  for (long i = 0; i < size; i += 64 / static_cast<long>(sizeof(T))) __builtin_prefetch(numbers + i);
}

// Lane i: query times key `first` + i; keys from `limit` on are not there, and stand for the last.
template <int VECTORS, class T>
inline V scores_of(const T* query, const T* keys, long first, long limit) {
  constexpr long d = VECTORS * LANES;
  if (first + LANES <= limit)
    return totals([=](int i) { return dot<VECTORS>(query, keys + (first + i) * d); });
  return totals([=](int i) {
    return dot<VECTORS>(query, keys + (first + i < limit ? first + i : limit - 1) * d);
  });
}

// A row of a head's numbers as float32, in the order in which `dot` sums them.
template <int VECTORS>
SMALL void widen(const uint16_t* from, float* to) {
  each<VECTORS / 2>([&](auto v) SMALL_LAMBDA {
    store(to + 2 * v * LANES, first(from + 2 * v * LANES));
    store(to + (2 * v + 1) * LANES, second(from + 2 * v * LANES));
  });
}

// The largest of scores [size].
inline float largest(const float* scores, long size) {
  V top = V{} - INFINITY;
  for (long s = 0; s < size; s += LANES) top = larger(top, load(scores + s));
  return largest_lane(top);
}

// scores [size] become e to the power of what they are above their largest; returns their sum.
inline float exponentials(float* scores, long size) {
  const float most = largest(scores, size);
  V mass = {};
  for (long s = 0; s < size; s += LANES) {
    const V e = expo(load(scores + s) - most);
    store(scores + s, e);
    mass += e;
  }
  return total(mass);
}

// out [COUNT, N * 16] = shares [COUNT, slots] times values [slots, N * 16], over the shares' sums; rows of
// shares, values and out are `apart`, d and `stride` numbers apart. Sums in the order of the slots. As many
// numbers at `ask` (or null) as of values are asked for on the way.
template <int COUNT, int N, class T>
inline void mix(const float* shares, long apart, const float* sums, const T* values, const T* ask, long d,
                long slots, T* out, long stride) {
  V acc[COUNT][N] = {};
  for (long s = 0; s < slots; ++s) {
    if (ask != nullptr) ahead(ask + s * d, N * LANES);
    float weights[COUNT];
    each<COUNT>([&](auto t) SMALL_LAMBDA { weights[t] = shares[t * apart + s]; });
    each<N>([&](auto v) SMALL_LAMBDA {
      again();
      const T* row = values + s * d + v / 2 * 2 * LANES;
      V value;
      if constexpr (N == 1) value = load(row);
      else value = v % 2 ? second(row) : first(row);
      each<COUNT>([&](auto t) SMALL_LAMBDA { acc[t][v] += weights[t] * value; });
    });
  }
  each<COUNT>([&](auto t) SMALL_LAMBDA {
    const float by = 1.f / sums[t];
    if constexpr (N == 1) store(out + t * stride, acc[t][0] * by);
    else
      each<N / 2>([&](auto v) SMALL_LAMBDA {
        join(out + t * stride + 2 * v * LANES, acc[t][2 * v] * by, acc[t][2 * v + 1] * by);
      });
  });
}

#if defined(__AVX512BF16__)
// The same in bfloat16, in place (a number takes half a score's room); returns the sum of what is left.
inline float short_exponentials(float* scores, long size) {
  const float most = largest(scores, size);
  uint16_t* out = reinterpret_cast<uint16_t*>(scores);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 mass = {};
  for (long s = 0; s < size; s += 2 * LANES) {
    const bool two = s + LANES < size;
    const V low = expo(load(scores + s) - most), high = two ? expo(load(scores + s + LANES) - most) : V{};
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    mass = _mm512_dpbf16_ps(mass, both, ones);
    std::memcpy(out + s, &both, sizeof both);  // behind the last are zeros, in the room of later scores
  }
  return total((V)mass);
}

// `mix` of shares in bfloat16, two slots at a time (behind a last one alone lies a share of zero). It asks
// for nothing: whether that would pay was not measured where there is a dot instruction.
template <int COUNT, int N>
inline void mix(const uint16_t* shares, long apart, const float* sums, const uint16_t* values,
                const uint16_t*, long d, long slots, uint16_t* out, long stride) {
  __m512 acc[COUNT][N] = {};
  for (long s = 0; s < slots; s += 2) {
    const uint16_t* row = values + s * d;
    const uint16_t* next = s + 1 < slots ? row + d : row;
    __m512bh both[N];  // a vector: of every 8 numbers of two slots the first 4 in pairs, or the last 4
    each<N / 2>([&](auto v) SMALL_LAMBDA {
      const __m512i a = _mm512_loadu_si512(row + 2 * v * LANES), b = _mm512_loadu_si512(next + 2 * v * LANES);
      both[2 * v] = (__m512bh)_mm512_unpacklo_epi16(a, b);
      both[2 * v + 1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
    });
    each<COUNT>([&](auto t) SMALL_LAMBDA {
      int32_t two;
      std::memcpy(&two, shares + t * apart + s, sizeof two);
      const __m512bh share = (__m512bh)_mm512_set1_epi32(two);
      each<N>([&](auto v) SMALL_LAMBDA { acc[t][v] = _mm512_dpbf16_ps(acc[t][v], both[v], share); });
    });
  }
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  each<COUNT>([&](auto t) SMALL_LAMBDA {
    const __m512 by = _mm512_set1_ps(1.f / sums[t]);
    each<N / 2>([&](auto v) SMALL_LAMBDA {
      const __m512bh half = _mm512_cvtne2ps_pbh(acc[t][2 * v + 1] * by, acc[t][2 * v] * by);
      _mm512_storeu_si512(out + t * stride + 2 * v * LANES, _mm512_permutexvar_epi64(order, (__m512i)half));
    });
  });
}
#endif

// Whether shares are made bfloat16, for the dot instruction.
template <class T, int N>
#if defined(__AVX512BF16__)
constexpr bool short_shares = sizeof(T) == 2 && N > 1;
#else
constexpr bool short_shares = false;
#endif

// `count` (at most GROUP) queries [., d] of one head against its slots 0..used-1, used a multiple of 16 of
// which those from `limit` on are not there and closed; closed [count, apart] is 0 where a query looks and
// -infinity where not; scores [GROUP, apart] is used. Rows of out are `stride` apart. `next` (or null): keys
// that this thread reads afterwards; they are asked for while values are mixed, as they and values, asked for
// together, would wait for one another.
template <int VECTORS, class T>
void attend(const T* query, long count, const T* keys, const T* values, const T* next, const float* closed,
            long apart, long used, long limit, float* scores, T* out, long stride) {
  constexpr long d = VECTORS * LANES;
  constexpr int N = VECTORS < 4 ? VECTORS : 4;
  const float scale = 1.f / std::sqrt(static_cast<float>(d));
  float sums[GROUP];
  const long slots = used < limit ? used : limit;
#if defined(MATRIX_TILES)
  if constexpr (short_shares<T, N>)
    if (tiles_granted()) {
      begin_attention(count);
      tile_scores<VECTORS>(query, count, keys, used, limit, [&](long t, long s, const V& products) {
        store(scores + t * apart + s, products * scale + load(closed + t * apart + s));
      });
      for (long t = 0; t < count; ++t) sums[t] = short_exponentials(scores + t * apart, used);
      const uint16_t* shares = reinterpret_cast<const uint16_t*>(scores);
      for (long v = 0; v < d; v += N * LANES)
        tile_mix<N>(shares, count, 2 * apart, sums, values + v, d, slots, out + v, stride);
      return release_tiles();
    }
#endif
  const auto score = [&](const auto* queries, const auto* rows, long s, long at, long there) {
    for (long t = 0; t < count; ++t)
      store(scores + t * apart + s, scores_of<VECTORS>(queries + t * d, rows, at, there) * scale +
                                        load(closed + t * apart + s));
  };
  // Without a dot instruction several queries read each key as float32, which it is made once.
  constexpr bool widens = sizeof(T) == 2 && N > 1 && !short_shares<T, N>;
  alignas(64) float wide_queries[widens ? GROUP * d : 1], wide_keys[widens ? LANES * d : 1];
  if constexpr (widens)
    for (long t = 0; count > 1 && t < count; ++t) widen<VECTORS>(query + t * d, wide_queries + t * d);
  for (long s = 0; s < used; s += LANES) {
    if (short_shares<T, N>) ahead(keys + (s + LANES) * d, LANES * d);
    ahead(values + s * d, LANES * d);
    if constexpr (widens) {
      if (count > 1) {
        for (long i = 0; i < LANES; ++i)
          widen<VECTORS>(keys + (s + i < limit ? s + i : limit - 1) * d, wide_keys + i * d);
        score(wide_queries, wide_keys, s, 0, LANES);
        continue;
      }
    }
    score(query, keys, s, s, limit);
  }
  const long parts = (count + TOGETHER - 1) / TOGETHER;
  const auto mixed = [&](const auto* shares, long row) {
    for (long i = 0; i < parts; ++i) {
      const long t = count * i / parts, more = count * (i + 1) / parts - t;
      const T* ask = i + 1 == parts ? next : nullptr;
      dispatch<TOGETHER>(more, [&](auto queries) SMALL_LAMBDA {
        constexpr int M = N < vectors_of_mix(queries) ? N : vectors_of_mix(queries);
        for (long v = 0; v < d; v += M * LANES)
          mix<queries, M>(shares + t * row, row, sums + t, values + v, ask == nullptr ? ask : ask + v, d, slots,
                          out + t * stride + v, stride);
      });
    }
  };
#if defined(__AVX512BF16__)
  if constexpr (short_shares<T, N>) {
    for (long t = 0; t < count; ++t) sums[t] = short_exponentials(scores + t * apart, used);
    return mixed(reinterpret_cast<const uint16_t*>(scores), 2 * apart);
  }
#endif
  for (long t = 0; t < count; ++t) sums[t] = exponentials(scores + t * apart, used);
  mixed(scores, apart);
}

template <class T>
void attend_width(long d, const T* query, long count, const T* keys, const T* values, const T* next,
                  const float* closed, long apart, long used, long limit, float* scores, T* out, long stride) {
  switch (d / LANES) {
    case 1: return attend<1>(query, count, keys, values, next, closed, apart, used, limit, scores, out, stride);
    case 2: return attend<2>(query, count, keys, values, next, closed, apart, used, limit, scores, out, stride);
    case 4: return attend<4>(query, count, keys, values, next, closed, apart, used, limit, scores, out, stride);
    default: return attend<8>(query, count, keys, values, next, closed, apart, used, limit, scores, out, stride);
  }
}

}  // namespace
