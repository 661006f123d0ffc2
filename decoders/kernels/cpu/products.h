// Matrix products at a handful of rows, over weights packed in panels of 16 outputs.
//
// [out, in] is packed [out / 16][in / 2][16][2] for bfloat16, [out / 16][in][16] for float32. Sums go
// over the inputs in order, so a row's result does not depend on how many rows run beside it.
#pragma once

#include <omp.h>

#include "vectors.h"

namespace {

// out [M_, N_ * 16] = a [M_, inputs] times N_ panels, sums in the order of the inputs.
template <int M_, int N_>
inline void tile(const uint16_t* a, long stride, const uint16_t* w, long inputs, V* out) {
  V acc[M_][N_] = {};
  const long panel = inputs * LANES;
#if defined(__AVX512BF16__)
  // The panels behind are asked for on the way; behind the last ones lie those of the next product.
  for (long k = 0; k < inputs; k += 2) {
    __m512bh b[N_];
    for (int n = 0; n < N_; ++n) {
      __builtin_prefetch(w + (N_ + n) * panel + k * LANES, 0, 2);
      __m512i bits = _mm512_loadu_si512(w + n * panel + k * LANES);
      std::memcpy(&b[n], &bits, sizeof bits);
    }
    for (int m = 0; m < M_; ++m) {
      int32_t pair;
      std::memcpy(&pair, a + m * stride + k, sizeof pair);
      __m512i bits = _mm512_set1_epi32(pair);
      __m512bh x;
      std::memcpy(&x, &bits, sizeof bits);
      for (int n = 0; n < N_; ++n)
        acc[m][n] = (V)_mm512_dpbf16_ps((__m512)acc[m][n], x, b[n]);
    }
  }
#else
  for (long k = 0; k < inputs; k += 2) {
    for (int n = 0; n < N_; ++n) {
      U both;  // lane i: weights k (low half) and k + 1 (high half) of output i
      std::memcpy(&both, w + n * panel + k * LANES, sizeof both);
      U low_bits = both << 16, high_bits = both & 0xffff0000u;
      V low, high;
      std::memcpy(&low, &low_bits, sizeof low);
      std::memcpy(&high, &high_bits, sizeof high);
      for (int m = 0; m < M_; ++m)
        {
          acc[m][n] += scalar(a[m * stride + k]) * low;
          acc[m][n] += scalar(a[m * stride + k + 1]) * high;
        }
    }
  }
#endif
  for (int m = 0; m < M_; ++m)
    for (int n = 0; n < N_; ++n) out[m * N_ + n] = acc[m][n];
}

template <int M_, int N_>
inline void tile(const float* a, long stride, const float* w, long inputs, V* out) {
  V acc[M_][N_] = {};
  const long panel = inputs * LANES;
  for (long k = 0; k < inputs; ++k)
    for (int n = 0; n < N_; ++n) {
      const V b = load(w + n * panel + k * LANES);
      for (int m = 0; m < M_; ++m) acc[m][n] += a[m * stride + k] * b;
    }
  for (int m = 0; m < M_; ++m)
    for (int n = 0; n < N_; ++n) out[m * N_ + n] = acc[m][n];
}

template <int N_, class T>
inline void rows_tile(int rows, const T* a, long stride, const T* w, long inputs, V* out) {
  switch (rows) {
    case 1: return tile<1, N_>(a, stride, w, inputs, out);
    case 2: return tile<2, N_>(a, stride, w, inputs, out);
    case 3: return tile<3, N_>(a, stride, w, inputs, out);
    case 4: return tile<4, N_>(a, stride, w, inputs, out);
    case 5: return tile<5, N_>(a, stride, w, inputs, out);
    default: return tile<ROWS, N_>(a, stride, w, inputs, out);
  }
}

// Panels [begin, end) of a product over rows [first, last); `use(m, panel, count, vectors)` takes the
// sums of `count` neighbouring panels of row m. Panels outside, rows inside: a panel stays in the cache;
// rows in tiles of one size, as a last one of two would wait for its panels.
template <class T, class Use>
void product(const T* a, long stride, const T* w, long inputs, long first, long last, long begin,
             long end, Use use) {
  V out[ROWS * PANELS];
  const long tiles = (last - first + ROWS - 1) / ROWS;
  for (long p = begin; p < end;) {
    const int count = end - p >= PANELS ? PANELS : (end - p >= 2 ? 2 : 1);
    const T* panels = w + p * LANES * inputs;
    for (long i = 0; i < tiles; ++i) {
      const long m = first + share(last - first, i, tiles);
      const int rows = static_cast<int>(first + share(last - first, i + 1, tiles) - m);
      if (count == PANELS) rows_tile<PANELS>(rows, a + m * stride, stride, panels, inputs, out);
      else if (count == 2) rows_tile<2>(rows, a + m * stride, stride, panels, inputs, out);
      else rows_tile<1>(rows, a + m * stride, stride, panels, inputs, out);
      for (int r = 0; r < rows; ++r) use(m + r, p, count, out + r * count);
    }
    p += count;
  }
}

template <class T>
void pack(const T* w, long outputs, long inputs, T* out) {
  constexpr long group = sizeof(T) == 2 ? 2 : 1;
  for (long p = 0; p < (outputs + LANES - 1) / LANES; ++p)
    for (long k = 0; k < inputs; k += group)
      for (long i = 0; i < LANES; ++i)
        for (long g = 0; g < group; ++g) {
          const long o = p * LANES + i;
          out[(p * inputs + k) * LANES + i * group + g] = o < outputs ? w[o * inputs + k + g] : T(0);
        }
}

// y [M, outputs] = x [M, inputs] w^T + bias
template <class T>
void linear(const T* x, const T* w, const T* bias, T* y, long rows, long inputs, long outputs,
            int threads) {
  const long panels = (outputs + LANES - 1) / LANES;
#pragma omp parallel num_threads(threads)
  {
    const int self = omp_get_thread_num(), all = omp_get_num_threads();
    product(x, inputs, w, inputs, 0, rows, share(panels, self, all), share(panels, self + 1, all),
            [=](long m, long panel, int count, const V* sums) {
              for (long o = panel * LANES; o < (panel + count) * LANES && o < outputs; ++o) {
                const float sum = sums[o / LANES - panel][o % LANES];
                store(y + m * outputs + o, bias == nullptr ? sum : sum + scalar(bias[o]));
              }
            });
  }
}

}  // namespace
