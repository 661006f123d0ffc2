// Vectors of 16 float32 lanes, in words of GCC that it maps to any processor; bfloat16 in and out of them.
//
// A processor's own vectors have NATIVE lanes; 16 are one of them, two, or two times two. What is not
// arithmetic is said once for a processor's own, and for two by each half.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#define SMALL inline __attribute__((always_inline))  // what is a handful of instructions
#define SMALL_LAMBDA __attribute__((always_inline))

// f(0), f(1), ..., of numbers that the compiler knows: what is kept in an array by such numbers alone it
// keeps in registers.
template <class F, int... I>
SMALL void each(F f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>()), ...);
}
template <int count, class F>
SMALL void each(F f) {
  each(f, std::make_integer_sequence<int, count>());
}

// f(count) of a count from 1 to `most`, as a number that the compiler knows.
template <int most, class F>
SMALL void dispatch(long count, F f) {
  if constexpr (most > 1) {
    if (count != most) return dispatch<most - 1>(count, f);
  }
  f(std::integral_constant<int, most>());
}

#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX2__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
constexpr int LANES = 16;  // outputs of a panel

typedef float OwnV __attribute__((vector_size(4 * NATIVE)));
typedef uint32_t OwnU __attribute__((vector_size(4 * NATIVE)));
typedef int32_t OwnI __attribute__((vector_size(4 * NATIVE)));
typedef uint16_t OwnH __attribute__((vector_size(2 * NATIVE)));
typedef uint16_t OwnP __attribute__((vector_size(4 * NATIVE)));

template <class T>
struct Two {
  T lo, hi;
};
template <class T>
using Sixteen =
    std::conditional_t<NATIVE == LANES, T, std::conditional_t<2 * NATIVE == LANES, Two<T>, Two<Two<T>>>>;
typedef Sixteen<OwnV> V;
template <class T>
constexpr int lanes_of_type = sizeof(T) / sizeof(float);

#define BY_HALVES(op)                                                                                  \
  template <class T>                                                                                   \
  SMALL Two<T> operator op(const Two<T>& a, const Two<T>& b) {                                         \
    return {a.lo op b.lo, a.hi op b.hi};                                                               \
  }                                                                                                    \
  template <class T>                                                                                   \
  SMALL Two<T> operator op(const Two<T>& a, float b) {                                                 \
    return {a.lo op b, a.hi op b};                                                                     \
  }                                                                                                    \
  template <class T>                                                                                   \
  SMALL Two<T> operator op(float a, const Two<T>& b) {                                                 \
    return {a op b.lo, a op b.hi};                                                                     \
  }
BY_HALVES(+)
BY_HALVES(-)
BY_HALVES(*)
BY_HALVES(/)
#undef BY_HALVES
template <class T>
SMALL Two<T> operator-(const Two<T>& a) {
  return {-a.lo, -a.hi};
}
template <class T>
SMALL Two<T>& operator+=(Two<T>& a, const Two<T>& b) {
  return a = a + b;
}

typedef std::make_integer_sequence<int, NATIVE> Places;  // 0, 1, ...
typedef std::make_integer_sequence<int, 2 * NATIVE> ShortPlaces;

// Lanes n apart change places, n a power of two.
template <int n, int... I>
SMALL OwnV exchange(OwnV v, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(v, OwnI{(I ^ n)...});
}
template <int n>
SMALL OwnV exchange(OwnV v) {
  return exchange<n>(v, Places());
}
template <int n, class T>
SMALL Two<T> exchange(const Two<T>& v) {
  if constexpr (n == lanes_of_type<T>) return {v.hi, v.lo};
  else return {exchange<n>(v.lo), exchange<n>(v.hi)};
}

// Two vectors of which every 2 n lanes are to be added up, folded into one of which every n are: n lanes of
// the one, n of the other, in turns. One of two shuffles is a mere blend.
template <int n, int... I>
SMALL OwnV fold(OwnV a, OwnV b, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(a, b, OwnI{(I & n ? I + NATIVE : I)...}) +
         __builtin_shuffle(a, b, OwnI{((I ^ n) + (I & n ? NATIVE : 0))...});
}
template <int n>
SMALL OwnV fold(OwnV a, OwnV b) {
  return fold<n>(a, b, Places());
}
template <int n, class T>
SMALL Two<T> fold(const Two<T>& a, const Two<T>& b) {
  if constexpr (n == lanes_of_type<T>) return {a.lo + a.hi, b.hi + b.lo};
  else return {fold<n>(a.lo, b.lo), fold<n>(a.hi, b.hi)};
}

SMALL OwnV larger(OwnV a, OwnV b) { return a > b ? a : b; }
template <class T>
SMALL Two<T> larger(const Two<T>& a, const Two<T>& b) {
  return {larger(a.lo, b.lo), larger(a.hi, b.hi)};
}

template <int n = NATIVE / 2>
SMALL float total(OwnV v) {
  if constexpr (n == 1) return v[0] + v[1];
  else return total<n / 2>(v + exchange<n>(v));
}
template <class T>
SMALL float total(const Two<T>& v) {
  return total(v.lo + v.hi);
}
template <int n = NATIVE / 2>
SMALL float largest_lane(OwnV v) {
  if constexpr (n == 1) return v[0] > v[1] ? v[0] : v[1];
  else return largest_lane<n / 2>(larger(v, exchange<n>(v)));
}
template <class T>
SMALL float largest_lane(const Two<T>& v) {
  return largest_lane(larger(v.lo, v.hi));
}

// Memory need not be aligned.
SMALL void get(const float* p, OwnV* v) { std::memcpy(v, p, sizeof *v); }
SMALL void get(const uint16_t* p, OwnV* v) {  // bfloat16 is the upper half of a float32
  OwnH half;
  std::memcpy(&half, p, sizeof half);
  const OwnU wide = __builtin_convertvector(half, OwnU) << 16;
  std::memcpy(v, &wide, sizeof wide);
}
template <class N, class T>
SMALL void get(const N* p, Two<T>* v) {
  get(p, &v->lo);
  get(p + lanes_of_type<T>, &v->hi);
}
template <class N>
SMALL V load(const N* p) {
  V v;
  get(p, &v);
  return v;
}

SMALL float scalar(uint16_t x) {
  uint32_t wide = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}
SMALL void store(float* p, float x) { *p = x; }
SMALL void store(uint16_t* p, float x) {  // round to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  *p = (bits & 0x7fffffffu) > 0x7f800000u
           ? static_cast<uint16_t>((bits >> 16) | 64)
           : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
SMALL OwnU rounded(OwnV v) {  // the same of every lane
  OwnU bits;
  std::memcpy(&bits, &v, sizeof bits);
  const OwnU above = bits >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? above | 64 : (bits + 0x7fffu + (above & 1)) >> 16;
}
SMALL void store(float* p, OwnV v) { std::memcpy(p, &v, sizeof v); }
SMALL void store(uint16_t* p, OwnV v) {
#if defined(__AVX512BF16__)
  const __m256bh half = _mm512_cvtneps_pbh((__m512)v);
#else
  const OwnH half = __builtin_convertvector(rounded(v), OwnH);
#endif
  std::memcpy(p, &half, sizeof half);
}
template <class N, class T>
SMALL void store(N* p, const Two<T>& v) {
  store(p, v.lo);
  store(p + lanes_of_type<T>, v.hi);
}

// Of every 8 of 2 NATIVE neighbouring numbers the first 4, or the second: bfloat16 is made float32 by one
// instruction that puts zeros between (AVX2: and loads), where picking one of each two would take another.
template <int from, int... I>
SMALL OwnV fours(const uint16_t* p, std::integer_sequence<int, I...>) {
  OwnP numbers;
  std::memcpy(&numbers, p, sizeof numbers);
  const OwnP wide =
      __builtin_shuffle(OwnP{}, numbers, OwnP{(I / 8 * 8 + from + I % 8 / 2 + I % 2 * 2 * NATIVE)...});
  OwnV v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}
SMALL OwnV first(const uint16_t* p, OwnV) { return fours<0>(p, ShortPlaces()); }
SMALL OwnV second(const uint16_t* p, OwnV) { return fours<4>(p, ShortPlaces()); }
template <class T>
SMALL Two<T> first(const uint16_t* p, Two<T>) {
  return {first(p, T()), first(p + 2 * lanes_of_type<T>, T())};
}
template <class T>
SMALL Two<T> second(const uint16_t* p, Two<T>) {
  return {second(p, T()), second(p + 2 * lanes_of_type<T>, T())};
}

// 32 neighbouring numbers as the two vectors that are cheapest to make of them, and back.
SMALL V first(const uint16_t* p) { return first(p, V()); }
SMALL V second(const uint16_t* p) { return second(p, V()); }
SMALL V first(const float* p) { return load(p); }
SMALL V second(const float* p) { return load(p + LANES); }
SMALL void join(float* p, const V& a, const V& b) {
  store(p, a);
  store(p + LANES, b);
}
template <int... I>
SMALL void join(uint16_t* p, OwnV a, OwnV b, std::integer_sequence<int, I...>) {
  const OwnU low = rounded(a), high = rounded(b);
  OwnP these, those;
  std::memcpy(&these, &low, sizeof low);
  std::memcpy(&those, &high, sizeof high);
  these = __builtin_shuffle(these, those, OwnP{(I / 8 * 8 + I % 4 * 2 + I % 8 / 4 * 2 * NATIVE)...});
  std::memcpy(p, &these, sizeof these);
}
SMALL void join(uint16_t* p, OwnV a, OwnV b) { join(p, a, b, ShortPlaces()); }
template <class T>
SMALL void join(uint16_t* p, const Two<T>& a, const Two<T>& b) {
  join(p, a.lo, b.lo);
  join(p + 2 * lanes_of_type<T>, a.hi, b.hi);
}

// v's lanes, which were numbered by their places' bits read backwards, in order.
template <int... I>
SMALL OwnV picked(OwnV a, OwnV b, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(a, b, OwnI{I...});
}
template <class T>
SMALL T in_order(const T& v) {
  typedef std::integer_sequence<int, 0, 8, 4, 12, 2, 10, 6, 14> Even;
  typedef std::integer_sequence<int, 1, 9, 5, 13, 3, 11, 7, 15> Odd;
  typedef std::integer_sequence<int, 0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15> All;
  if constexpr (NATIVE == LANES) {
    return picked(v, v, All());
  } else if constexpr (2 * NATIVE == LANES) {
    return {picked(v.lo, v.hi, Even()), picked(v.lo, v.hi, Odd())};
  } else {
    constexpr int from[LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    float at[LANES], to[LANES];
    store(at, v);
    for (int i = 0; i < LANES; ++i) to[i] = at[from[i]];
    return load(to);
  }
}
// Lane i: the total of vector(i). Vectors are made in order, as what they are made of lies in memory, where
// they are folded, so that few live at a time.
template <class Vector>
SMALL V totals(Vector vector) {
  const auto two = [=](int i) {
    const V one = vector(i);
    return fold<8>(one, vector(i + 1));
  };
  const auto four = [=](int i) {
    const V one = two(i);
    return fold<4>(one, two(i + 2));
  };
  const auto eight = [=](int i) {
    const V one = four(i);
    return fold<2>(one, four(i + 4));
  };
  const V first = eight(0);
  return in_order(fold<1>(first, eight(8)));
}

// Neighbouring lanes as complex numbers, times the pairs (re, im).
template <int... I>
SMALL OwnV turned(OwnV x, OwnV factors, std::integer_sequence<int, I...>) {
  const OwnV real = __builtin_shuffle(factors, OwnI{(I & ~1)...});
  const OwnV imaginary = __builtin_shuffle(factors, OwnI{(I | 1)...});
  const OwnV sign{(I & 1 ? 1.f : -1.f)...};
  return x * real + exchange<1>(x) * (sign * imaginary);
}
SMALL OwnV turned(OwnV x, OwnV factors) { return turned(x, factors, Places()); }
template <class T>
SMALL Two<T> turned(const Two<T>& x, const Two<T>& factors) {
  return {turned(x.lo, factors.lo), turned(x.hi, factors.hi)};
}

// e^x by 2^n times a polynomial on [-ln2 / 2, ln2 / 2]; relative error below 3e-7. 0 below -87.
SMALL OwnV expo(OwnV x) {
  const OwnI tiny = x < -87.f;
  x = tiny ? OwnV{} - 87.f : (x > 88.f ? OwnV{} + 88.f : x);
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const OwnV n = (x * 1.44269504f + magic) - magic;
  const OwnV r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  OwnV p = r * (1.f / 5040) + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const OwnI bits = (__builtin_convertvector(n, OwnI) + 127) << 23;
  OwnV scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return tiny ? OwnV{} : p * scale;
}
template <class T>
SMALL Two<T> expo(const Two<T>& x) {
  return {expo(x.lo), expo(x.hi)};
}

// Whether all of `count` indices are in 0..size-1.
SMALL bool within(const int64_t* index, long count, long size) {
  bool all = true;
  for (long i = 0; i < count; ++i) all &= index[i] >= 0 && index[i] < size;
  return all;
}

SMALL long share(long count, int part, int parts) { return count * part / parts; }

}  // namespace
