// The layers of a transformer at a handful of rows, for CPUs: one call a forward.
//
// Why: at 2 to 50 rows a library spends more time around a product than in it, and an interpreter
// more around an operator than either. Here the weights are packed once, in panels of 16 outputs, and
// all layers run inside one parallel region. With AVX512-BF16 products use its dot instruction; all
// else is plain vector code that any compiler maps to what the processor has.
//
// A row's result does not depend on how many rows run beside it: every sum goes over its inputs in
// order, so one code verified alone or in a tree meets the same numbers (attention sums over slots, so
// there only the order of a path's slots can differ).
//
// Layout: activations float32 [M, D] between products, M = R * T rows (t fastest); inputs of products in
// the model's type (bfloat16 or float32). Weights [out, in] are packed [out / 16][in / 2][16][2] for
// bfloat16, [out / 16][in][16] for float32; w13 holds a block of the gate, then the same one of up.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16;  // outputs of a panel
constexpr int ROWS = 6;    // rows of a tile: 6 x 4 panels fill 24 of 32 vector registers
constexpr int PANELS = 4;
constexpr int QUERIES = 4;  // queries that attend together, or slots of a single one
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
typedef float Q __attribute__((vector_size(16), aligned(4)));

inline float total(V v) {  // by halves
  V w = v + __builtin_shuffle(v, U{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  w += __builtin_shuffle(w, U{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  w += __builtin_shuffle(w, U{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return w[0] + w[1];
}
// The totals of four vectors at once.
inline Q totals(V a, V b, V c, V d) {
  const U low{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const U high{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  const V ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
  const V cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
  const U even{0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  const U odd{4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
  V all = __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, odd);  // 4 lanes a vector
  all += __builtin_shuffle(all, U{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return Q{all[0] + all[1], all[4] + all[5], all[8] + all[9], all[12] + all[13]};
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

// ---- products ------------------------------------------------------------------------------------

// out [M_, N_ * 16] = a [M_, inputs] times N_ panels, sums in the order of the inputs.
template <int M_, int N_>
inline void tile(const uint16_t* a, long stride, const uint16_t* w, long inputs, V* out) {
  V acc[M_][N_] = {};
  const long panel = inputs * LANES;
#if defined(__AVX512BF16__)
  for (long k = 0; k < inputs; k += 2) {
    __m512bh b[N_];
    for (int n = 0; n < N_; ++n) {
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
        acc[m][n] += scalar(a[m * stride + k]) * low + scalar(a[m * stride + k + 1]) * high;
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
// sums of `count` neighbouring panels of row m. Panels outside, rows inside: a panel stays in the cache.
template <class T, class Use>
void product(const T* a, long stride, const T* w, long inputs, long first, long last, long begin,
             long end, Use use) {
  V out[ROWS * PANELS];
  for (long p = begin; p < end;) {
    const int count = end - p >= PANELS ? PANELS : (end - p >= 2 ? 2 : 1);
    const T* panels = w + p * LANES * inputs;
    for (long m = first; m < last; m += ROWS) {
      const int rows = static_cast<int>(last - m < ROWS ? last - m : ROWS);
      if (count == PANELS) rows_tile<PANELS>(rows, a + m * stride, stride, panels, inputs, out);
      else if (count == 2) rows_tile<2>(rows, a + m * stride, stride, panels, inputs, out);
      else rows_tile<1>(rows, a + m * stride, stride, panels, inputs, out);
      for (int i = 0; i < rows; ++i) use(m + i, p, count, out + i * count);
    }
    p += count;
  }
}

// x / rms(x) * weight of rows [first, last), to the model's type; without weight a mere cast.
template <class T>
void norm(const float* x, const T* weight, float eps, long width, long first, long last, T* out) {
  for (long m = first; m < last; ++m) {
    const float* row = x + m * width;
    float scale = 1;
    if (weight != nullptr) {
      V squares = {};
      for (long i = 0; i < width; i += LANES) squares += load(row + i) * load(row + i);
      scale = 1.f / std::sqrt(total(squares) / width + eps);
    }
    for (long i = 0; i < width; i += LANES)
      store(out + m * width + i, weight == nullptr ? load(row + i) : load(row + i) * scale * load(weight + i));
  }
}

// ---- attention -----------------------------------------------------------------------------------

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
        const V k = load(keys + (s + i < limit ? s + i : s) * d + v * LANES);
        for (int t = 0; t < COUNT; ++t) sum[i * COUNT + t] += q[t][v] * k;
      }
    *reinterpret_cast<Q*>(scores + s * COUNT) =
        totals(sum[0], sum[1], sum[2], sum[3]) + *reinterpret_cast<const Q*>(closed + s * COUNT);
  }
  const long size = used * COUNT;
  for (long i = size; i < size + LANES; ++i) scores[i] = -INFINITY;
  V top = V{} - INFINITY, mass = {};
  for (long i = 0; i < size; i += LANES) top = larger(top, load(scores + i));
  const U half{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
  const U quarter{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11};
  top = larger(top, __builtin_shuffle(top, half));
  top = larger(top, __builtin_shuffle(top, quarter));  // lane i: over slots of query i % 4
  if (COUNT == 1) {
    for (int i = 1; i < QUERIES; ++i) top[0] = top[i] > top[0] ? top[i] : top[0];
    top = V{} + top[0];
  }
  for (long i = 0; i < size; i += LANES) {
    const V e = expo(load(scores + i) - top);
    store(scores + i, e);
    mass += e;
  }
  mass += __builtin_shuffle(mass, half);
  mass += __builtin_shuffle(mass, quarter);
  if (COUNT == 1) mass[0] = (mass[0] + mass[1]) + (mass[2] + mass[3]);
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

// ---- what Python sees ----------------------------------------------------------------------------

extern "C" {

// One layer's packed weights; attention_norm is null in the EAGLE drafter's layer.
struct LayerWeights {
  const void *attention_norm, *wqkv, *wo, *ffn_norm, *w13, *w2;
};

// A forward's shape and tensors. Strides in elements; the last axis is contiguous everywhere.
struct Forward {
  long rows, queries, width, heads, ffn, layers, slots;  // R, T, D, H, F, layers, S
  float eps;
  int threads;
  const LayerWeights* weights;
  const void* final_norm;            // null: none
  const void* input;                 // [R, T, D] in the model's type, contiguous
  void* output;                      // [R, T, D], contiguous
  void* cache;                       // [layers, 2, R, H, S, d], contiguous
  const float* rope;                 // [places, d / 2, 2]
  long places;                       // rows of the table; places beyond read the last one
  const int64_t* place;              // [R, T]
  long place_row, place_query;
  const int64_t* slot;               // [R, T], where keys and values go
  long slot_row, slot_query;
  const uint8_t* mask;               // [R, T, S], nonzero where a query may look
  long mask_row, mask_query;
  float* scratch;                    // `lantern_scratch` floats
  int products;                      // nonzero: the matrix products alone, to be timed
};

}  // extern "C"

namespace {

// Queries of a row, in groups that attend together.
inline long group(const Forward& f) { return f.queries == 1 ? 1 : QUERIES; }
inline long groups(const Forward& f) { return (f.queries + group(f) - 1) / group(f); }

// Floats of scratch: x, qkv [M, .] float32; attended, active [M, .]; closed, the mask as it is added,
// [R, groups, S, group]; per thread a normed [M, D], and queries and scores of one head.
struct Scratch {
  long x, qkv, attended, active, closed, used, shared, normed, query, scores, own;
  explicit Scratch(const Forward& f) {
    const long m = f.rows * f.queries;
    x = 0;
    qkv = x + m * f.width;
    attended = qkv + m * 3 * f.width;
    active = attended + m * f.width;
    closed = active + m * f.ffn;
    used = closed + f.rows * groups(f) * group(f) * (f.slots + QUERIES);
    shared = used + f.rows + LANES;
    normed = 0;
    query = normed + m * f.width;
    scores = query + groups(f) * group(f) * (f.width / f.heads);
    own = scores + group(f) * (f.slots + QUERIES) + 2 * LANES;
  }
  long floats(int threads) const { return shared + threads * own; }
  long closed_row(const Forward& f) const { return groups(f) * group(f) * (f.slots + QUERIES); }
};

// The mask of row r as it is added to scores, and how many slots some query of the row sees (a multiple
// of 4; those behind are closed).
void open_row(const Forward& f, const Scratch& at, long r) {
  const long size = group(f);
  long used = 1;
  for (long t = 0; t < f.queries; ++t) {
    const uint8_t* row = f.mask + r * f.mask_row + t * f.mask_query;
    long s = f.slots;
    while (s > used && !row[s - 1]) --s;
    used = s > used ? s : used;
  }
  const long padded = (used + QUERIES - 1) / QUERIES * QUERIES;
  float* closed = f.scratch + at.closed + r * at.closed_row(f);
  for (long t = 0; t < groups(f) * size; ++t) {
    float* column = closed + t / size * size * padded + t % size;
    const uint8_t* row = f.mask + r * f.mask_row + t * f.mask_query;
    for (long s = 0; s < padded; ++s)
      column[s * size] = t >= f.queries ? 0.f : (s < f.slots && row[s] ? 0.f : -INFINITY);
  }
  f.scratch[at.used + r] = static_cast<float>(padded);
}

// Rotates the queries and keys of (row, head), appends keys and values, attends.
template <class T>
void head(const Forward& f, const Scratch& at, long layer, long r, long h, float* own) {
  const long d = f.width / f.heads, m0 = r * f.queries;
  float* query = own + at.query;
  const long plane = f.rows * f.heads * f.slots * d;
  T* keys = static_cast<T*>(f.cache) + layer * 2 * plane + (r * f.heads + h) * f.slots * d;
  T* values = keys + plane;
  const float scale = 1.f / std::sqrt(static_cast<float>(d));
  for (long t = 0; t < f.queries; ++t) {
    const float* qkv = f.scratch + at.qkv + (m0 + t) * 3 * f.width + h * d;
    long place = f.place[r * f.place_row + t * f.place_query];
    place = place < f.places ? place : f.places - 1;
    const float* turn = f.rope + place * d;
    const long slot = f.slot[r * f.slot_row + t * f.slot_query];
    for (long i = 0; i < d; i += 2) {
      const float re = turn[i], im = turn[i + 1];
      const float *q = qkv + i, *k = qkv + f.width + i;
      T half[2];  // the model's type in between, as in PyTorch's path
      store(half, q[0] * re - q[1] * im);
      store(half + 1, q[0] * im + q[1] * re);
      query[t * d + i] = scalar(half[0]) * scale;
      query[t * d + i + 1] = scalar(half[1]) * scale;
      store(keys + slot * d + i, k[0] * re - k[1] * im);
      store(keys + slot * d + i + 1, k[0] * im + k[1] * re);
    }
    for (long i = 0; i < d; i += LANES) store(values + slot * d + i, load(qkv + 2 * f.width + i));
  }
  const long size = group(f), used = static_cast<long>(f.scratch[at.used + r]);
  for (long i = f.queries * d; i < groups(f) * size * d; ++i) query[i] = 0;
  const float* closed = f.scratch + at.closed + r * at.closed_row(f);
  T* attended = reinterpret_cast<T*>(f.scratch + at.attended) + m0 * f.width + h * d;
  for (long t = 0; t < f.queries; t += size) {
    const int real = static_cast<int>(f.queries - t < size ? f.queries - t : size);
    const float *q = query + t * d, *c = closed + t * used;
    T* out = attended + t * f.width;
    float* scores = own + at.scores;
    if (size == 1) attend_width<1>(d, q, keys, values, c, used, f.slots, scores, out, f.width, real);
    else attend_width<QUERIES>(d, q, keys, values, c, used, f.slots, scores, out, f.width, real);
  }
}

inline long share(long count, int part, int parts) { return count * part / parts; }

// One thread's part of the forward. With at least 8 rows R a thread, threads own rows and never meet;
// below that they own panels and heads, and meet after every product.
template <class T>
void work(const Forward& f, const Scratch& at, int self, int threads) {
  const bool by_rows = f.rows >= 8L * threads;
  const int part = by_rows ? 0 : self, parts = by_rows ? 1 : threads;
  const long r0 = by_rows ? share(f.rows, self, threads) : 0;
  const long r1 = by_rows ? share(f.rows, self + 1, threads) : f.rows;
  const long first = r0 * f.queries, last = r1 * f.queries;
  const long D = f.width, F = f.ffn;
  float* x = f.scratch + at.x;
  float* qkv = f.scratch + at.qkv;
  float* own = f.scratch + at.shared + self * at.own;
  T* attended = reinterpret_cast<T*>(f.scratch + at.attended);
  T* active = reinterpret_cast<T*>(f.scratch + at.active);
  T* normed = reinterpret_cast<T*>(own + at.normed);
  const T* input = static_cast<const T*>(f.input);
  const auto meet = [&] {
    if (!by_rows && threads > 1) {
#pragma omp barrier
    }
  };
  const auto to = [](float* out, long stride, bool add) {
    return [=](long m, long panel, int count, const V* sums) {
      float* row = out + m * stride + panel * LANES;
      for (int n = 0; n < count; ++n) {
        V* place = reinterpret_cast<V*>(row + n * LANES);
        *place = add ? *place + sums[n] : sums[n];
      }
    };
  };
  const long begin = share((last - first) * D, part, parts), end = share((last - first) * D, part + 1, parts);
  for (long i = first * D + begin; i < first * D + end; ++i) x[i] = scalar(input[i]);
  if (!f.products)
    for (long r = r0 + share(r1 - r0, part, parts); r < r0 + share(r1 - r0, part + 1, parts); ++r)
      open_row(f, at, r);
  meet();
  for (long layer = 0; layer < f.layers; ++layer) {
    const LayerWeights& w = f.weights[layer];
    if (!f.products) norm(x, static_cast<const T*>(w.attention_norm), f.eps, D, first, last, normed);
    product(normed, D, static_cast<const T*>(w.wqkv), D, first, last, share(3 * D / LANES, part, parts),
            share(3 * D / LANES, part + 1, parts), to(qkv, 3 * D, false));
    meet();
    const long items = (r1 - r0) * f.heads;
    for (long i = share(items, part, parts); i < share(items, part + 1, parts) && !f.products; ++i)
      head<T>(f, at, layer, r0 + i / f.heads, i % f.heads, own);
    meet();
    product(attended, D, static_cast<const T*>(w.wo), D, first, last, share(D / LANES, part, parts),
            share(D / LANES, part + 1, parts), to(x, D, true));
    meet();
    if (!f.products) norm(x, static_cast<const T*>(w.ffn_norm), f.eps, D, first, last, normed);
    product(normed, D, static_cast<const T*>(w.w13), D, first, last,
            2 * share(F / LANES, part, parts), 2 * share(F / LANES, part + 1, parts),
            [=, &f](long m, long panel, int count, const V* sums) {
              for (int n = 0; n < count; n += 2) {  // panels are even: gate, up
                T* out = active + m * F + (panel + n) / 2 * LANES;
                const V gate = sums[n];
                store(out, f.products ? gate : gate / (1.f + expo(-gate)) * sums[n + 1]);
              }
            });
    meet();
    product(active, F, static_cast<const T*>(w.w2), F, first, last, share(D / LANES, part, parts),
            share(D / LANES, part + 1, parts), to(x, D, true));
    meet();
  }
  const long f0 = first + share(last - first, part, parts), f1 = first + share(last - first, part + 1, parts);
  norm(x, static_cast<const T*>(f.final_norm), f.eps, D, f0, f1, static_cast<T*>(f.output));
}

template <class T>
void forward(const Forward& f) {
  const Scratch at(f);
#pragma omp parallel num_threads(f.threads)
  work<T>(f, at, omp_get_thread_num(), omp_get_num_threads());
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

extern "C" {

long lantern_scratch(const Forward* f) { return Scratch(*f).floats(f->threads); }

void lantern_forward(const Forward* f, int half) {
  if (half) forward<uint16_t>(*f);
  else forward<float>(*f);
}

void lantern_pack(const void* w, long outputs, long inputs, void* out, int half) {
  if (half) pack(static_cast<const uint16_t*>(w), outputs, inputs, static_cast<uint16_t*>(out));
  else pack(static_cast<const float*>(w), outputs, inputs, static_cast<float*>(out));
}

void lantern_linear(const void* x, const void* w, const void* bias, void* y, long rows, long inputs,
                    long outputs, int threads, int half) {
  if (half)
    linear(static_cast<const uint16_t*>(x), static_cast<const uint16_t*>(w),
           static_cast<const uint16_t*>(bias), static_cast<uint16_t*>(y), rows, inputs, outputs, threads);
  else
    linear(static_cast<const float*>(x), static_cast<const float*>(w), static_cast<const float*>(bias),
           static_cast<float*>(y), rows, inputs, outputs, threads);
}

}  // extern "C"
