// Matrix products at a handful of rows, over weights packed in panels of 16 outputs.
//
// [out, in] is packed [out / 16][in / 2][16 / SOME][2][SOME] for bfloat16, [out / 16][in][16] for float32.
// Sums go over the inputs in order, so a row's result does not depend on how many rows run beside it.
#pragma once

#include <omp.h>

#include <vector>

#include "matrix_tiles.h"

namespace {

// What a tile's sums take of the vector registers: of 32 long ones 24, for 6 rows times 4 panels; of 16 short
// ones, two a panel, 6 to 10, since zeros that widen weights, weights and factors need the others.
constexpr int ROWS = NATIVE == LANES ? 6 : 5;  // rows of a tile, at most
constexpr int PANELS = 4;                      // panels that are handed on together, at most
constexpr int panels_of_tile(int rows) { return NATIVE == LANES || rows == 1 ? PANELS : rows == 2 ? 2 : 1; }

// What the compiler has read from memory it reads again, where keeping it would take a register from sums,
// of which there are 16, or an instruction of its own.
SMALL void again() {
  if (NATIVE < LANES) asm volatile("" ::: "memory");
}

// out, whose rows lie `count` apart, = acc.
template <int M_, int N_>
SMALL void hand_on(const V (&acc)[M_][N_], V* out, int count) {
  each<M_>([&](auto m) SMALL_LAMBDA {
    each<N_>([&](auto n) SMALL_LAMBDA { out[m * count + n] = acc[m][n]; });
  });
}

// What rows are multiplied as, and of how many outputs the weights of an input lie together: float32, and as
// `first` and `second` read them; or as the dot instruction of bfloat16 wants both.
#if defined(__AVX512BF16__)
template <class T>
using Factor = T;
constexpr long SOME = 1;

// As the one below, whatever the rows.
template <int M_, int N_>
inline void tile(const uint16_t* a, long stride, const uint16_t* w, const char* ask, long step, long inputs,
                 V* out, int count) {
  V acc[M_][N_] = {};
  const long panel = inputs * LANES;
  for (long k = 0; k < inputs; k += 2) {
    __m512bh b[N_];
    each<N_>([&](auto n) SMALL_LAMBDA {
      __builtin_prefetch(ask, 0, 2);
      ask += step;
      const __m512i bits = _mm512_loadu_si512(w + n * panel + k * LANES);
      std::memcpy(&b[n], &bits, sizeof bits);
    });
    each<M_>([&](auto m) SMALL_LAMBDA {
      int32_t pair;
      std::memcpy(&pair, a + m * stride + k, sizeof pair);
      const __m512i bits = _mm512_set1_epi32(pair);
      __m512bh x;
      std::memcpy(&x, &bits, sizeof bits);
      each<N_>([&](auto n) SMALL_LAMBDA {
        acc[m][n] = (V)_mm512_dpbf16_ps((__m512)acc[m][n], x, b[n]);
      });
    });
  }
  hand_on<M_, N_>(acc, out, count);
}
#else
template <class T>
using Factor = float;
constexpr long SOME = 4;
#endif

// out [M_, N_] panels, those of a row `count` apart = a [M_, inputs] times N_ panels, sums in the order of
// the inputs (an even number). On the way the memory at `ask` is asked for, `step` bytes on for each 64 bytes
// of weights: so memory runs while rows are multiplied. Not asked for: by one row, which takes all that memory
// gives, and on processors with long vectors and no dot instruction, where nobody has measured it.
template <int M_, int N_, class T>
inline void tile(const float* a, long stride, const T* w, const char* ask, long step, long inputs, V* out,
                 int count) {
  V acc[M_][N_] = {};
  const long panel = inputs * LANES;
  constexpr bool asks = NATIVE < LANES && M_ > 1;
#pragma GCC unroll 2
  for (long k = 0; k < inputs; k += 2)
    each<2>([&](auto later) SMALL_LAMBDA {
      again();
      each<N_>([&](auto n) SMALL_LAMBDA {
        const T* both = w + n * panel + k * LANES;  // weights k and k + 1 of every output
        if (asks && !later)
          for (size_t i = 0; i < sizeof(T) / 2; ++i, ask += step) __builtin_prefetch(ask, 0, 2);
        const V b = later ? second(both) : first(both);
        each<M_>([&](auto m) SMALL_LAMBDA { acc[m][n] += a[m * stride + k + later] * b; });
      });
    });
  hand_on<M_, N_>(acc, out, count);
}

// out [M_, N_] panels = a [M_, inputs] times N_ panels, in tiles; ask, step: as of `tile`.
template <int M_, int N_, class A, class T>
inline void tiles(const A* a, long stride, const T* w, const char* ask, long step, long inputs, V* out) {
  constexpr int some = panels_of_tile(M_) < N_ ? panels_of_tile(M_) : N_;
  const long lines = inputs * LANES * sizeof(T) / 64;  // of a panel
  for (int n = 0; n < N_; n += some)
    tile<M_, some>(a, stride, w + n * inputs * LANES, ask + n * lines * step, step, inputs, out + n, N_);
}

template <int N_, class A, class T>
inline void rows_tile(int rows, const A* a, long stride, const T* w, const char* ask, long step, long inputs,
                      V* out) {
  dispatch<ROWS>(rows, [&](auto m) SMALL_LAMBDA { tiles<m, N_>(a, stride, w, ask, step, inputs, out); });
}

// Rows [first, last) of a [., inputs] as factors, row `first` first, with their stride: as they are, or a
// thread's own copy, until its next call.
template <class T>
const Factor<T>* factors(const T* a, long inputs, long first, long last, long* stride) {
  if constexpr (std::is_same_v<T, Factor<T>>) {
    return a + first * *stride;
  } else {
    thread_local std::vector<float> buffer;
    if (buffer.size() < static_cast<size_t>((last - first) * inputs)) buffer.resize((last - first) * inputs);
    const long whole = inputs / LANES * LANES;
    for (long m = first; m < last; ++m) {
      const T* row = a + m * *stride;
      float* to = buffer.data() + (m - first) * inputs;
      for (long i = 0; i < whole; i += LANES) store(to + i, load(row + i));
      for (long i = whole; i < inputs; ++i) to[i] = scalar(row[i]);
    }
    *stride = inputs;
    return buffer.data();
  }
}

// Panels [begin, end) of a product over rows [first, last); `use(m, panel, count, vectors)` takes the
// sums of `count` neighbouring panels of row m. Panels outside, rows inside: a panel stays in the cache;
// rows in tiles of one size, as a last one of two would wait for its panels. Each tile asks for its share of
// the panels that come next, so that memory is never idle. `next`: the weights that this thread multiplies by
// afterwards, where they do not lie behind these.
template <class T, class Use>
void product(const T* a, long stride, const T* w, long inputs, long first, long last, long begin,
             long end, Use use, const T* next = nullptr) {
  if (begin >= end || first >= last) return;
#if defined(MATRIX_TILES)
  if constexpr (std::is_same_v<T, uint16_t>)
    if (tiles_granted()) return tile_product(a, stride, w, inputs, first, last, begin, end, use);
#endif
  V out[ROWS * PANELS];
  const Factor<T>* by = factors(a, inputs, first, last, &stride);
  const long all = last - first, tiles = (all + ROWS - 1) / ROWS;
  for (long p = begin; p < end;) {
    const int count = end - p >= PANELS ? PANELS : (end - p >= 2 ? 2 : 1);
    const T* panels = w + p * LANES * inputs;
    const long size = count * LANES * inputs * sizeof(T);
    const T* follows = p + count < end || next == nullptr ? panels + count * LANES * inputs : next;
    const char* behind = reinterpret_cast<const char*>(follows);
    const long step = (64 + tiles - 1) / tiles;
    for (long i = 0; i < tiles; ++i) {
      const long m = share(all, i, tiles);
      const int rows = static_cast<int>(share(all, i + 1, tiles) - m);
      const char* ask = behind + size * i / tiles;
      if (count == PANELS) rows_tile<PANELS>(rows, by + m * stride, stride, panels, ask, step, inputs, out);
      else if (count == 2) rows_tile<2>(rows, by + m * stride, stride, panels, ask, step, inputs, out);
      else rows_tile<1>(rows, by + m * stride, stride, panels, ask, step, inputs, out);
      for (int r = 0; r < rows; ++r) use(first + m + r, p, count, out + r * count);
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
          out[(p * inputs + k) * LANES + (i / SOME * group + g) * SOME + i % SOME] =
              o < outputs ? w[o * inputs + k + g] : T(0);
        }
}

// y [M, outputs] = x [M, inputs] w^T + bias, in the dtype of the weights or in float32
template <class T, class Y>
void linear(const T* x, const T* w, const float* bias, Y* y, long rows, long inputs, long outputs, int threads) {
  const long panels = (outputs + LANES - 1) / LANES;
#pragma omp parallel num_threads(threads)
  {
    const int self = omp_get_thread_num(), all = omp_get_num_threads();
    const auto use = [=](long m, long panel, int count, const V* vectors) {
      for (int n = 0; n < count; ++n) {
        const long first = (panel + n) * LANES;
        Y* to = y + m * outputs + first;
        if (first + LANES <= outputs) {
          store(to, bias == nullptr ? vectors[n] : vectors[n] + load(bias + first));
          continue;
        }
        const float* sums = reinterpret_cast<const float*>(vectors + n);
        for (long o = first; o < outputs; ++o)
          store(to + o - first, bias == nullptr ? sums[o - first] : sums[o - first] + bias[o]);
      }
    };
    product(x, inputs, w, inputs, 0, rows, share(panels, self, all), share(panels, self + 1, all), use);
  }
}

}  // namespace
