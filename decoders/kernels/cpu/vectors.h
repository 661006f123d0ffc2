// Vectors of 16 float32 lanes, in words of GCC that it maps to any processor; bfloat16 in and out of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#define SHUFFLE1(a, ...) __builtin_shuffle(a, U{__VA_ARGS__})
#define SHUFFLE2(a, b, ...) __builtin_shuffle(a, b, U{__VA_ARGS__})

namespace {

constexpr int LANES = 16;  // outputs of a panel
constexpr int ROWS = 6;    // rows of a tile: 6 x 4 panels fill 24 of 32 vector registers
constexpr int PANELS = 4;
typedef float V __attribute__((vector_size(64), aligned(4)));
typedef uint16_t H __attribute__((vector_size(32), aligned(2)));
typedef uint32_t U __attribute__((vector_size(64), aligned(4)));

inline V load(const float* p) { return *reinterpret_cast<const V*>(p); }
inline V load(const uint16_t* p) {  // bfloat16 is the upper half of a float32
  U wide = __builtin_convertvector(*reinterpret_cast<const H*>(p), U) << 16;
  V out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}
inline float scalar(float x) { return x; }
inline float scalar(uint16_t x) {
  uint32_t wide = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}
inline void store(float* p, float x) { *p = x; }
inline void store(uint16_t* p, float x) {  // round to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  *p = (bits & 0x7fffffffu) > 0x7f800000u
           ? static_cast<uint16_t>((bits >> 16) | 64)
           : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
typedef int32_t I __attribute__((vector_size(64)));

// The other half of the lanes, the other quarter of a half, the other pair of a quarter.
inline V halves(V v) { return SHUFFLE1(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7); }
inline V quarters(V v) { return SHUFFLE1(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11); }
inline V pairs(V v) { return SHUFFLE1(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13); }

inline float total(V v) {
  V w = v + halves(v);
  w += quarters(w);
  w += pairs(w);
  return w[0] + w[1];
}
// Two vectors of which every 2 n lanes are to be added up, folded into one of which every n are: n lanes of
// the one, n of the other, in turns. One of two shuffles is a mere blend.
inline V fold8(V a, V b) {
  return SHUFFLE2(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31) +
         SHUFFLE2(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
}
inline V fold4(V a, V b) {
  return SHUFFLE2(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31) +
         SHUFFLE2(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
}
inline V fold2(V a, V b) {
  return SHUFFLE2(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31) +
         SHUFFLE2(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29);
}
inline V fold1(V a, V b) {
  return SHUFFLE2(a, b, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31) +
         SHUFFLE2(a, b, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
}
// Lane i: the total of vector(i). Vectors are made in order, as what they are made of lies in memory, where
// they are folded, so that few live at a time.
template <class Vector>
inline V totals(Vector vector) {
  const auto two = [=](int i) {
    const V one = vector(i);
    return fold8(one, vector(i + 1));
  };
  const auto four = [=](int i) {
    const V one = two(i);
    return fold4(one, two(i + 2));
  };
  const auto eight = [=](int i) {
    const V one = four(i);
    return fold2(one, four(i + 4));
  };
  const V first = eight(0);
  return SHUFFLE1(fold1(first, eight(8)), 0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);
}
inline V pick(I take, V yes, V no) { return take ? yes : no; }
inline V larger(V a, V b) { return pick(a > b, a, b); }

// e^x by 2^n times a polynomial on [-ln2 / 2, ln2 / 2]; relative error below 3e-7. 0 below -87.
inline V expo(V x) {
  const I tiny = x < -87.f;
  x = pick(tiny, V{} - 87.f, pick(x > 88.f, V{} + 88.f, x));
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const V n = (x * 1.44269504f + magic) - magic;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = r * (1.f / 5040) + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const I bits = (__builtin_convertvector(n, I) + 127) << 23;
  V scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return pick(tiny, V{}, p * scale);
}
inline void store(float* p, V v) { *reinterpret_cast<V*>(p) = v; }
inline void store(uint16_t* p, V v) {
#if defined(__AVX512BF16__)
  const __m256bh half = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(p, &half, sizeof half);
#else
  for (int i = 0; i < LANES; ++i) store(p + i, v[i]);
#endif
}

// 32 neighbouring numbers in the two vectors that are cheapest to make of them, and back.
inline void load_both(const float* p, V* v) {
  v[0] = load(p);
  v[1] = load(p + LANES);
}
inline void load_both(const uint16_t* p, V* v) {  // the even ones, the odd ones
  U bits;
  std::memcpy(&bits, p, sizeof bits);
  const U even = bits << 16, odd = bits & 0xffff0000u;
  std::memcpy(v, &even, sizeof even);
  std::memcpy(v + 1, &odd, sizeof odd);
}
inline void store_both(float* p, V a, V b) {
  store(p, a);
  store(p + LANES, b);
}
inline void store_both(uint16_t* p, V a, V b) {
  uint16_t even[LANES], odd[LANES];
  store(even, a);
  store(odd, b);
  for (int i = 0; i < LANES; ++i) p[2 * i] = even[i], p[2 * i + 1] = odd[i];
}

// Whether all of `count` indices are in 0..size-1.
inline bool within(const int64_t* index, long count, long size) {
  bool all = true;
  for (long i = 0; i < count; ++i) all &= index[i] >= 0 && index[i] < size;
  return all;
}

inline long share(long count, int part, int parts) { return count * part / parts; }

}  // namespace
