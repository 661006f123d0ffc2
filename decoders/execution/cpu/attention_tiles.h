// Attention's two products by the matrix unit, for up to 16 queries of a head: scores, and shares of values.
//
// Keys and queries meet as slots by queries, since keys lie as left-hand tiles want them and queries are few to
// rearrange; values are put in pairs of slots, 32 slots at a time. A query's numbers do not depend on others.
#pragma once

#include "matrix_tiles.h"

#if defined(MATRIX_TILES)
namespace {

// Which tile holds what: 0 to 3 what is mixed, 16 numbers each.
enum AttentionTile { SLOTS = 4, QUERIES, SCORES, SHARES };

inline void begin_attention(long count) {
  TileShapes shapes;
  for (int n = 0; n < 4; ++n) shapes.set(n, count, 64);
  shapes.set(SLOTS, 16, 64);  // keys: 16 slots, 32 numbers; values: 16 pairs of slots, 16 numbers
  shapes.set(QUERIES, 16, count * 4);
  shapes.set(SCORES, 16, count * 4);
  shapes.set(SHARES, count, 64);
  shapes.use();
}

// Rows i and i + n of a matrix exchange what lies across: after n = 8, 4, 2, 1 it is transposed.
template <int n, int... I>
SMALL void across(OwnV (&rows)[LANES], std::integer_sequence<int, I...>) {
  each<LANES>([&](auto i) SMALL_LAMBDA {
    if constexpr ((i & n) == 0) {
      const OwnV a = rows[i], b = rows[i + n];
      rows[i] = __builtin_shuffle(a, b, OwnI{(I & n ? LANES + I - n : I)...});
      rows[i + n] = __builtin_shuffle(a, b, OwnI{(I & n ? LANES + I : I + n)...});
    }
  });
}
SMALL void transpose(OwnV (&rows)[LANES]) {
  across<8>(rows, Places());
  across<4>(rows, Places());
  across<2>(rows, Places());
  across<1>(rows, Places());
}

// put(t, s, vector) of queries t [count, d]: their products with keys s to s + 15, for s in 0, 16, ..., used;
// keys from `limit` on are not there, and stand for the last.
template <int VECTORS, class Put>
inline void tile_scores(const uint16_t* query, long count, const uint16_t* keys, long used, long limit, Put put) {
  constexpr long d = VECTORS * LANES;
  alignas(64) int32_t pairs[d / 2][LANES];  // of two numbers, by query
  for (long t = 0; t < count; ++t)
    for (long k = 0; k < d / 2; ++k) std::memcpy(&pairs[k][t], query + t * d + 2 * k, 4);
  alignas(64) uint16_t last[LANES * d];
  alignas(64) OwnV rows[LANES];
  for (long s = 0; s < used; s += LANES) {
    const uint16_t* here = keys + s * d;
    if (s + LANES > limit) {
      for (long i = 0; i < LANES; ++i)
        std::memcpy(last + i * d, keys + (s + i < limit ? s + i : limit - 1) * d, d * 2);
      here = last;
    }
    zero_tile<SCORES>();
    each<VECTORS / 2>([&](auto k) SMALL_LAMBDA {
      load_tile<SLOTS>(here + k * DEEP, d * 2);
      load_tile<QUERIES>(pairs[k * DEEP / 2], 64);
      multiply_tiles<SCORES, SLOTS, QUERIES>();
    });
    store_tile<SCORES>(rows, 64);
    transpose(rows);
    for (long t = 0; t < count; ++t) put(t, s, rows[t]);
  }
}

// out [count, N * 16] = shares [count, slots] times values [slots, N * 16], over the shares' sums; rows of
// shares, values and out are `apart`, d and `stride` numbers apart. Shares behind the last slot are zero, up to
// a multiple of 32.
template <int N>
inline void tile_mix(const uint16_t* shares, long count, long apart, const float* sums, const uint16_t* values,
                     long d, long slots, uint16_t* out, long stride) {
  alignas(64) __m512i pairs[N][DEEP / 2];
  alignas(64) __m512 mixed[LANES][N];
  each<N>([&](auto v) SMALL_LAMBDA { zero_tile<v>(); });
  for (long s = 0; s < slots; s += DEEP) {
    for (long i = 0; i < DEEP / 2; ++i) {
      const auto row = [&](long slot) { return values + (slot < slots ? slot : slots - 1) * d; };
      const uint16_t *one = row(s + 2 * i), *two = row(s + 2 * i + 1);
      each<N / 2>([&](auto v) SMALL_LAMBDA {  // of every 8 numbers the first 4, or the last 4
        const __m512i a = _mm512_loadu_si512(one + 2 * v * LANES), b = _mm512_loadu_si512(two + 2 * v * LANES);
        pairs[2 * v][i] = _mm512_unpacklo_epi16(a, b);
        pairs[2 * v + 1][i] = _mm512_unpackhi_epi16(a, b);
      });
    }
    load_tile<SHARES>(shares + s, apart * 2);
    each<N>([&](auto v) SMALL_LAMBDA {
      load_tile<SLOTS>(pairs[v], 64);
      multiply_tiles<v, SHARES, SLOTS>();
    });
  }
  each<N>([&](auto v) SMALL_LAMBDA { store_tile<v>(&mixed[0][v], sizeof mixed[0]); });
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  for (long t = 0; t < count; ++t) {
    const __m512 by = _mm512_set1_ps(1.f / sums[t]);
    each<N / 2>([&](auto v) SMALL_LAMBDA {
      const __m512bh half = _mm512_cvtne2ps_pbh(mixed[t][2 * v + 1] * by, mixed[t][2 * v] * by);
      _mm512_storeu_si512(out + t * stride + 2 * v * LANES, _mm512_permutexvar_epi64(order, (__m512i)half));
    });
  }
}

}  // namespace
#endif
