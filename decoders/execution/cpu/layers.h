// The layers of a transformer, all of them inside one parallel region.
//
// Activations are float32 [M, D] between products, M = R * T rows (t fastest); inputs of products have
// the model's type. w13 is packed with a panel of the gate, then the same one of up; wo and w2 as two
// matrices, of the first half of their inputs and of the second, whose sums are added up at last: where
// heads and panels divide by two, two threads go from the projections to their halves of wo, and from w13 to
// those of w2, without meeting.
#pragma once

#include <sched.h>

#include <cstring>

#include "attention.h"
#include "products.h"

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
  void* output;                      // [R, W, D], contiguous
  void* cache;                       // [layers, 2, R, H, S, d], contiguous
  const float* rope;                 // [rotations, d / 2, 2]
  long rotations;                    // rows of the table; positions beyond read the last one
  const int64_t* position;           // [R, T]
  long position_row, position_query;
  const int64_t* slot;               // [R, T], where keys and values go
  long slot_row, slot_query;
  const void* mask;                  // [R, T, S]: bytes, nonzero where a query may look; or floats to add
  bool added;                        // the mask is floats
  long mask_row, mask_query;
  const int64_t* wanted;             // [R, W], contiguous: queries whose output is wanted; null: all, W = T
  long outputs;                      // W
  float* scratch;                    // `Scratch::floats`, zeros at first
};

namespace {

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
      store(out + m * width + i,
            weight == nullptr ? load(row + i) : load(row + i) * scale * load(weight + i));
  }
}

constexpr long MEETING = 64;  // floats: those who arrived, and a line of cache away what the others watch
constexpr long SPINS = 4000;  // a fraction of a millisecond

// Returns once all threads of a forward are here: they meet every few microseconds, so they wait awake, and
// only where a processor has other work do they let that run.
inline void meet(const Forward& f, int threads) {
  if (threads == 1) return;
  uint32_t* arrived = reinterpret_cast<uint32_t*>(f.scratch);
  uint32_t* met = reinterpret_cast<uint32_t*>(f.scratch + MEETING / 2);
  const uint32_t before = __atomic_load_n(met, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) == static_cast<uint32_t>(threads)) {
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(met, before + 1, __ATOMIC_RELEASE);
    return;
  }
  for (long i = 0; __atomic_load_n(met, __ATOMIC_ACQUIRE) == before; ++i) {
    if (i > SPINS) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
  }
}

// Slots from one query's scores to the next: those of the cache, in whole vectors.
inline long apart(const Forward& f) { return (f.slots + LANES - 1) / LANES * LANES; }

// Floats of scratch: where threads meet; qkv [M, .] float32; attended, active [M, .]; the sums of wo's halves
// and of w2's, [2, M, D] each; closed, the mask as it is added, [R, T, apart]; per thread a normed and x
// [M, D], and queries and scores of one head.
struct Scratch {
  long qkv, attended, active, wo_sums, w2_sums, closed, used, shared, normed, x, query, scores, local;
  explicit Scratch(const Forward& f) {
    const long m = f.rows * f.queries;
    qkv = MEETING;
    attended = qkv + m * 3 * f.width;
    active = attended + m * f.width;
    wo_sums = active + m * f.ffn;
    w2_sums = wo_sums + 2 * m * f.width;
    closed = w2_sums + 2 * m * f.width;
    used = closed + m * apart(f);
    shared = used + f.rows + LANES;
    normed = 0;
    x = normed + m * f.width;
    query = x + m * f.width;
    scores = query + f.queries * (f.width / f.heads);
    local = scores + GROUP * apart(f) + 2 * LANES;
  }
  long floats(int threads) const { return shared + threads * local; }
};

inline bool is_open(uint8_t mask) { return mask; }
inline bool is_open(float mask) { return mask == 0; }

// The mask of row r as it is added to scores, and how many slots some query of the row sees (in whole
// vectors; those behind are closed).
template <class M>
void open_row(const Forward& f, const Scratch& at, long r) {
  const M* mask = static_cast<const M*>(f.mask) + r * f.mask_row;
  long used = 1;
  for (long t = 0; t < f.queries; ++t) {
    const M* row = mask + t * f.mask_query;
    long s = f.slots;
    while (s > used && !is_open(row[s - 1])) --s;
    used = s > used ? s : used;
  }
  const long padded = (used + LANES - 1) / LANES * LANES, there = padded < f.slots ? padded : f.slots;
  for (long t = 0; t < f.queries; ++t) {
    float* closed = f.scratch + at.closed + (r * f.queries + t) * apart(f);
    const M* row = mask + t * f.mask_query;
    for (long s = 0; s < there; ++s) closed[s] = is_open(row[s]) ? 0.f : -INFINITY;
    for (long s = there; s < padded; ++s) closed[s] = -INFINITY;
  }
  f.scratch[at.used + r] = static_cast<float>(padded);
}

// A head's key, rotated, and its value, [d] each, to their slots in the cache.
template <class T>
void append(const float* turn, const float* key, const float* value, long d, T* to_key, T* to_value) {
  for (long i = 0; i < d; i += LANES) {
    store(to_key + i, turned(load(key + i), load(turn + i)));
    store(to_value + i, load(value + i));
  }
}

// Keys of (row, head); its values lie as many numbers behind as all keys of the layer are.
template <class T>
T* keys_of(const Forward& f, long layer, long r, long h) {
  return static_cast<T*>(f.cache) + ((layer * 2 * f.rows + r) * f.heads + h) * f.slots * (f.width / f.heads);
}

// Rotates the queries and keys of (row, head), appends keys and values, attends with the `wanted` queries
// [outputs] of the row (null: with all). `next` (or null): keys that this thread reads afterwards.
template <class T>
void head(const Forward& f, const Scratch& at, long layer, long r, long h, const int64_t* wanted, const T* next,
          float* local) {
  const long d = f.width / f.heads, m0 = r * f.queries;
  T* query = reinterpret_cast<T*>(local + at.query);
  T* keys = keys_of<T>(f, layer, r, h);
  T* values = keys + f.rows * f.heads * f.slots * d;
  for (long t = 0; t < f.queries; ++t) {
    const float* qkv = f.scratch + at.qkv + (m0 + t) * 3 * f.width + h * d;
    long position = f.position[r * f.position_row + t * f.position_query];
    position = position < f.rotations ? position : f.rotations - 1;
    const float* turn = f.rope + position * d;
    const long slot = f.slot[r * f.slot_row + t * f.slot_query];
    for (long i = 0; i < d; i += LANES) store(query + t * d + i, turned(load(qkv + i), load(turn + i)));
    append(turn, qkv + f.width, qkv + 2 * f.width, d, keys + slot * d, values + slot * d);
  }
  const long used = static_cast<long>(f.scratch[at.used + r]), step = apart(f);
  const float* closed = f.scratch + at.closed + m0 * step;
  T* attended = reinterpret_cast<T*>(f.scratch + at.attended) + h * d;
  if (wanted != nullptr) {
    for (long w = 0; w < f.outputs; ++w) {
      const long t = wanted[r * f.outputs + w];
      attend_width(d, query + t * d, 1, keys, values, w + 1 == f.outputs ? next : nullptr, closed + t * step,
                   step, used, f.slots, local + at.scores, attended + (r * f.outputs + w) * f.width, f.width);
    }
    return;
  }
  attended += m0 * f.width;
  for (long t = 0; t < f.queries; t += GROUP) {
    const long left = f.queries - t;
    attend_width(d, query + t * d, left < GROUP ? left : GROUP, keys, values, left <= GROUP ? next : nullptr,
                 closed + t * step, step, used, f.slots, local + at.scores, attended + t * f.width, f.width);
  }
}

// One thread's part of the forward. With at least 8 rows R a thread, threads own rows and never meet; below
// that they own panels and, where these divide by the threads, heads, and meet before one reads what another
// wrote: once behind wo and once behind w2 where what is read before is a thread's own.
template <class T>
void work(const Forward& f, const Scratch& at, int self, int threads) {
  const bool by_rows = f.rows >= 8L * threads;
  const int part = by_rows ? 0 : self, parts = by_rows ? 1 : threads;
  const long r0 = by_rows ? share(f.rows, self, threads) : 0;
  const long r1 = by_rows ? share(f.rows, self + 1, threads) : f.rows;
  long first = r0 * f.queries, last = r1 * f.queries, M = f.rows * f.queries;
  const long D = f.width, F = f.ffn;
  float* qkv = f.scratch + at.qkv;
  float* local = f.scratch + at.shared + self * at.local;
  float* x = local + at.x;
  T* attended = reinterpret_cast<T*>(f.scratch + at.attended);
  T* active = reinterpret_cast<T*>(f.scratch + at.active);
  T* normed = reinterpret_cast<T*>(local + at.normed);
  const auto meet = [&] { ::meet(f, parts); };
  for (long r = r0 + share(r1 - r0, part, parts); r < r0 + share(r1 - r0, part + 1, parts); ++r)
    if (f.added) open_row<float>(f, at, r);
    else open_row<uint8_t>(f, at, r);
  meet();
  const T* input = static_cast<const T*>(f.input);
  for (long m = first; m < last; ++m) {
    const T* row = input + m * D;
    for (long i = 0; i < D; i += LANES) store(x + m * D + i, load(row + i));
  }
  const auto to = [](float* out, long stride) {
    return [=](long m, long panel, int count, const V* sums) {
      for (int n = 0; n < count; ++n) store(out + m * stride + (panel + n) * LANES, sums[n]);
    };
  };
  const auto of = [](const void* weights, long panel, long inputs) {
    return static_cast<const T*>(weights) + panel * LANES * inputs;
  };
  const long outputs = D / LANES, begin = share(outputs, part, parts), end = share(outputs, part + 1, parts);
  const long up = 2 * share(F / LANES, part, parts), up_end = 2 * share(F / LANES, part + 1, parts);
  // Panels of this thread in wo and w2, whose halves lie behind one another.
  const long stack = share(2 * outputs, part, parts), stack_end = share(2 * outputs, part + 1, parts);
  const bool whole_heads = f.heads % parts == 0;  // threads own heads, from the projections on
  const long qkv_begin = whole_heads ? begin : share(3 * outputs, part, parts);
  const long heads = whole_heads ? f.heads / parts : f.heads, h0 = whole_heads ? part * heads : 0;
  const long items = (r1 - r0) * heads;  // heads h0 and on of all rows: all are this thread's, or a share
  const long item = whole_heads ? 0 : share(items, part, parts);
  const long item_end = whole_heads ? items : share(items, part + 1, parts);
  // Whether the inputs of a thread's half of wo, or of w2, are what it has made itself.
  const bool mixes_own = parts <= 2 && whole_heads, feeds_own = parts <= 2 && F / LANES % parts == 0;
  // sums [2, M, D] = this thread's panels of the halves of a's inputs times theirs of the weights.
  const auto multiply = [&](const T* a, const void* weights, long inputs, float* sums, const T* next) {
    const long half = inputs / 2;
    for (int h = 0; h < 2; ++h) {
      const long from = stack > h * outputs ? stack : h * outputs;
      const long till = stack_end < (h + 1) * outputs ? stack_end : (h + 1) * outputs;
      product(a + h * half, inputs, of(weights, 0, half), half, first, last, from, till,
              to(sums + h * (M - 1) * D, D), till == stack_end ? next : nullptr);
    }
  };
  const auto collect = [&](const float* sums) {  // when all have met; each thread has an x of its own
    meet();
    for (long i = first * D; i < last * D; i += LANES)
      store(x + i, load(x + i) + (load(sums + i) + load(sums + M * D + i)));
  };
  for (long layer = 0; layer < f.layers; ++layer) {
    const LayerWeights& w = f.weights[layer];
    norm(x, static_cast<const T*>(w.attention_norm), f.eps, D, first, last, normed);
    const auto project = [&](long from, long till, const T* next) {
      product(normed, D, of(w.wqkv, 0, D), D, first, last, from, till, to(qkv, 3 * D), next);
    };
    if (whole_heads) {
      const long keys = outputs + begin, values = keys + outputs, size = end - begin;
      project(begin, end, of(w.wqkv, keys, D));
      project(keys, keys + size, of(w.wqkv, values, D));
      project(values, values + size, of(w.wo, stack, D / 2));
    } else {
      project(qkv_begin, share(3 * outputs, part + 1, parts), of(w.wo, stack, D / 2));
      meet();
    }
    const bool few = f.wanted != nullptr && layer + 1 == f.layers;
    const auto keys_at = [&](long i) { return keys_of<T>(f, layer, r0 + i / heads, h0 + i % heads); };
    for (long i = item; i < item_end; ++i)
      head<T>(f, at, layer, r0 + i / heads, h0 + i % heads, few ? f.wanted : nullptr,
              i + 1 < item_end ? keys_at(i + 1) : nullptr, local);
    if (few) {  // from here on there are W rows of x per row, closed up
      for (long r = r0; r < r1; ++r)
        for (long w = 0; w < f.outputs; ++w)
          std::memmove(x + (r * f.outputs + w) * D, x + (r * f.queries + f.wanted[r * f.outputs + w]) * D,
                       D * sizeof(float));
      first = r0 * f.outputs, last = r1 * f.outputs, M = f.rows * f.outputs;
    }
    if (!mixes_own) meet();
    multiply(attended, w.wo, D, f.scratch + at.wo_sums, of(w.w13, up, D));
    collect(f.scratch + at.wo_sums);
    norm(x, static_cast<const T*>(w.ffn_norm), f.eps, D, first, last, normed);
    product(
        normed, D, of(w.w13, 0, D), D, first, last, up, up_end,
        [=, &f](long m, long panel, int count, const V* sums) {
          for (int n = 0; n < count; n += 2) {  // panels are even: gate, up
            T* out = active + m * F + (panel + n) / 2 * LANES;
            const V gate = sums[n];
            store(out, gate / (1.f + expo(-gate)) * sums[n + 1]);
          }
        },
        of(w.w2, stack, F / 2));
    if (!feeds_own) meet();
    multiply(active, w.w2, F, f.scratch + at.w2_sums,
             of(f.weights[layer + 1 < f.layers ? layer + 1 : 0].wqkv, qkv_begin, D));
    collect(f.scratch + at.w2_sums);
  }
  const long m0 = first + share(last - first, part, parts);  // rows that this thread writes
  const long m1 = first + share(last - first, part + 1, parts);
  norm(x, static_cast<const T*>(f.final_norm), f.eps, D, m0, m1, static_cast<T*>(f.output));
}

// Whether every position, slot and wanted query is in its table (positions beyond it read the last rotation).
bool fits(const Forward& f) {
  bool all = f.wanted == nullptr || within(f.wanted, f.rows * f.outputs, f.queries);
  for (long r = 0; r < f.rows; ++r)
    for (long t = 0; t < f.queries; ++t) {
      const long slot = f.slot[r * f.slot_row + t * f.slot_query];
      all &= f.position[r * f.position_row + t * f.position_query] >= 0 && slot >= 0 && slot < f.slots;
    }
  return all;
}

template <class T>
void forward(const Forward& f) {
  const Scratch at(f);
#pragma omp parallel num_threads(f.threads)
  work<T>(f, at, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace
