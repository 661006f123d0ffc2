// A whole draft tree under the root, level by level, in one parallel region: decoders.propose.trees.static and
// decoders.propose.trees.dynamic.
#pragma once

#include <algorithm>

#include "acceptance.h"
#include "distribution.h"
#include "drafting.h"

extern "C" {

// What every tree reads: the drafter's memory is for its widest level.
struct Grow {
  Expand drafter;
  const float* root_logits;    // [B, V]
  const int64_t* root_code;    // [B]
  Filter filter;
  long size, children;         // N + 1, K
  long levels;
  float* left;                 // [threads, V]
  int64_t *codes, *child;      // [B, N + 1], [B, N + 1, K], written (null: a chain's, which stay)
};

// A tree of one shape, with children drawn without replacement, or the likeliest ones.
struct GrowStatic {
  Grow base;
  const int64_t *parents, *first;  // nodes with children, level by level; [levels + 1] where one begins
  const int64_t* parent;           // [N + 1]
  const int64_t* shape;            // [N + 1, K] children, 0 where there is none
  const float* uniform;            // [B, places, row], from the column of the drafter's first draw on
  long places, row;
  const int64_t* position;         // [B], the place of the root's child
  float* q;                        // [B, N + 1, V]; null: greedy
};

// The best `keep` of the candidates that grow from the best `children` of a level.
struct GrowDynamic {
  Grow base;
  long candidates;             // C
  int64_t *code, *above;       // [B, C], a candidate's code, and its parent among them (-1: the root)
  float* score;                // [B, C]
  int64_t *front, *session;    // [B, K], candidates to draft on from, and their parents in the session
  float* best;                 // [B, K]
  int64_t* order;              // [B, 2, C]
  int64_t *parents, *depth;    // [B, N + 1], written
  uint8_t* ancestry;           // [B, N + 1, N + 1], written
  float* expected;             // [B], written: 1 + the sum of the kept candidates' probabilities
};

}  // extern "C"

namespace {

constexpr long CHILDREN = 16;  // of a node of a static tree, at most (decoders.noise.MAX_CHILDREN)

// The `count` largest values, largest first; of equal ones the first. index, best [count].
void top(const float* values, long size, long count, int64_t* index, float* best) {
  for (long j = 0; j < count; ++j) index[j] = j, best[j] = -INFINITY;
  for (long at = 0; at < size; at += LANES) {
    if (at + LANES <= size && !(largest_lane(load(values + at)) > best[count - 1])) continue;
    for (long i = at; i < size && i < at + LANES; ++i) {
      if (!(values[i] > best[count - 1])) continue;
      long j = count - 1;
      for (; j > 0 && values[i] > best[j - 1]; --j) index[j] = index[j - 1], best[j] = best[j - 1];
      index[j] = i, best[j] = values[i];
    }
  }
}

// The drafter's layer at w nodes of an image, in memory that is enough for more.
inline Forward level_of(const Expand& e, long w) {
  Forward f = e.layer;
  f.queries = f.place_row = f.slot_row = w;
  f.mask_row = w * f.slots;
  return f;
}

// Whether the nodes 0..nodes have slots behind the root's.
bool fits(const Expand& e, long nodes) {
  bool all = nodes < e.nodes;
  for (long r = 0; r < e.layer.rows; ++r)
    all &= e.root_slot[r] >= 0 && e.root_slot[r] + nodes < e.layer.slots;
  return all;
}

bool fits(const GrowStatic& g) {
  const long last = g.base.levels > 1 ? g.parents[g.first[g.base.levels] - 1] : 0;
  bool all = fits(g.base.drafter, last) && g.base.children <= CHILDREN;
  all &= g.q != nullptr || g.base.children <= g.base.drafter.vocab;
  for (long b = 0; b < g.base.drafter.batch; ++b) all &= g.position[b] >= 0;
  return all;
}

bool fits(const GrowDynamic& g) {
  const Expand& e = g.base.drafter;
  return fits(e, (g.base.levels - 1) * g.base.children) && g.base.children <= e.vocab;
}

// The children of a node, from the logits after it; `left` [V] is used up.
void draw(const GrowStatic& g, const float* logits, long b, long node, long level, float* left) {
  const Grow& base = g.base;
  const long V_ = base.drafter.vocab, K = base.children;
  const int64_t* to = g.shape + node * K;
  int64_t* codes = base.codes + b * base.size;
  long count = 0;
  while (count < K && to[count] > 0) ++count;
  if (g.q == nullptr) {
    int64_t index[CHILDREN];
    float best[CHILDREN];
    probabilities(logits, base.filter, V_, left);
    top(left, V_, count, index, best);
    for (long j = 0; j < count; ++j) codes[to[j]] = index[j];
    return;
  }
  const long place = g.position[b] + level;
  const float* u = g.uniform + (b * g.places + (place < g.places ? place : g.places - 1)) * g.row;
  const float* q = g.q + (b * base.size + node) * V_;
  probabilities(logits, base.filter, V_, const_cast<float*>(q));
  for (long j = 0; j < count; ++j) {
    codes[to[j]] = sample(q, V_, u[j]);
    if (j + 1 == count) break;
    if (q != left) std::memcpy(left, q, V_ * sizeof(float));
    q = left;
    left[codes[to[j]]] = 0;
    normalise(left, V_);  // nothing left: all zeros already
  }
}

// The children of a node but those whose code has q = 0, or repeats an earlier sibling's.
void keep_possible(const GrowStatic& g, long b, long node) {
  const Grow& base = g.base;
  const long K = base.children;
  const int64_t *to = g.shape + node * K, *codes = base.codes + b * base.size;
  const float* q = g.q + (b * base.size + node) * base.drafter.vocab;
  int64_t* out = base.child + (b * base.size + node) * K;
  for (long j = 0; j < K; ++j) {
    bool keep = to[j] > 0 && q[codes[to[j]]] > 0;
    for (long i = 0; i < j && keep; ++i) keep = codes[to[i]] != codes[to[j]];
    out[j] = keep ? to[j] : 0;
  }
}

template <class T>
void grow_part(const GrowStatic& g, int self, int threads) {
  const Grow& base = g.base;
  const Expand& e = base.drafter;
  const float* logits = base.root_logits;
  float* left = base.left + self * e.vocab;
  for (long b = self; b < e.batch; b += threads) base.codes[b * base.size] = base.root_code[b];
  for (long level = 0; level < base.levels; ++level) {
    const int64_t* parents = g.parents + g.first[level];
    const long w = g.first[level + 1] - g.first[level];
    if (level > 0) {
      const auto of = [&](long b, long i) {
        return Node{base.codes[b * base.size + parents[i]], parents[i], g.parent[parents[i]]};
      };
      expand_part<T>(e, level_of(e, w), level, of, self, threads);
      meet(e.layer, threads);
      logits = e.logits;
    }
    for (long i = share(e.batch * w, self, threads); i < share(e.batch * w, self + 1, threads); ++i)
      draw(g, logits + i * e.vocab, i / w, parents[i % w], level, left);
    meet(e.layer, threads);
  }
  const long nodes = e.batch * base.size;
  if (g.q == nullptr || base.child == nullptr) return;
  for (long i = share(nodes, self, threads); i < share(nodes, self + 1, threads); ++i)
    keep_possible(g, i / base.size, i % base.size);
}

// The likeliest codes after a node as candidates from `at` on; `above`: which candidate it is.
void propose(const GrowDynamic& g, const float* logits, long b, long above, long at, float* p) {
  const long vocab = g.base.drafter.vocab;
  float* score = g.score + b * g.candidates;
  probabilities(logits, g.base.filter, vocab, p);
  top(p, vocab, g.base.children, g.code + b * g.candidates + at, score + at);
  for (long i = at; i < at + g.base.children; ++i) {
    // An impossible code stays below all others, at a value of its own.
    const float code = static_cast<float>(g.code[b * g.candidates + i]);
    const float log = std::log(score[i] > 1e-30f ? score[i] : 1e-30f) - (score[i] > 0 ? 0.f : code);
    score[i] = above < 0 ? log : score[above] + log;
    g.above[b * g.candidates + i] = above;
  }
}

// The best K of the level's candidates, which are those from `at` on.
void choose(const GrowDynamic& g, long b, long level, long at) {
  const long K = g.base.children;
  int64_t *front = g.front + b * K, *session = g.session + b * K;
  top(g.score + b * g.candidates + at, level == 0 ? K : K * K, K, front, g.best + b * K);
  for (long i = 0; i < K; ++i) {
    session[i] = level == 0 ? 0 : 1 + (level - 1) * K + front[i] / K;
    front[i] += at;
  }
}

// The best N candidates of image b as a draft. A parent's score is never below its child's, and it comes
// before it, so no node loses its parent.
void prune(const GrowDynamic& g, long b) {
  const Grow& base = g.base;
  const long C = g.candidates, size = base.size, K = base.children;
  const float* score = g.score + b * C;
  const int64_t* above = g.above + b * C;
  int64_t *order = g.order + b * 2 * C, *number = order + C;  // of a candidate that is kept
  int64_t *codes = base.codes + b * size, *child = base.child + b * size * K;
  int64_t *parents = g.parents + b * size, *depth = g.depth + b * size;
  uint8_t* ancestry = g.ancestry + b * size * size;
  for (long i = 0; i < C; ++i) order[i] = i;
  const auto better = [=](long i, long j) { return score[i] > score[j] || (score[i] == score[j] && i < j); };
  if (size - 1 < C) std::nth_element(order, order + size - 1, order + C, better);
  std::sort(order, order + size - 1);
  std::memset(child, 0, size * K * sizeof(int64_t));
  std::memset(ancestry, 0, size * size);
  std::memset(number, 0, C * sizeof(int64_t));
  codes[0] = base.root_code[b];
  parents[0] = depth[0] = 0;
  ancestry[0] = 1;
  float expected = 1;
  for (long n = 1; n < size; ++n) {
    const long i = order[n - 1], parent = above[i] < 0 ? 0 : number[above[i]];
    number[i] = n;
    expected += std::exp(score[i]);
    codes[n] = g.code[b * C + i];
    parents[n] = parent;
    depth[n] = depth[parent] + 1;
    long rank = 0;
    while (child[parent * K + rank] > 0) ++rank;
    child[parent * K + rank] = n;
    std::memcpy(ancestry + n * size, ancestry + parent * size, size);
    ancestry[n * size + n] = 1;
  }
  g.expected[b] = expected;
}

template <class T>
void grow_part(const GrowDynamic& g, int self, int threads) {
  const Grow& base = g.base;
  const Expand& e = base.drafter;
  const long K = base.children;
  const float* logits = base.root_logits;
  float* p = base.left + self * e.vocab;
  for (long level = 0; level < base.levels; ++level) {
    const long w = level == 0 ? 1 : K, at = level == 0 ? 0 : K + (level - 1) * K * K;
    if (level > 0) {
      const auto of = [&](long b, long i) {
        const int64_t code = g.code[b * g.candidates + g.front[b * K + i]];
        return Node{code, 1 + (level - 1) * K + i, g.session[b * K + i]};
      };
      expand_part<T>(e, level_of(e, K), level, of, self, threads);
      meet(e.layer, threads);
      logits = e.logits;
    }
    for (long i = share(e.batch * w, self, threads); i < share(e.batch * w, self + 1, threads); ++i)
      propose(g, logits + i * e.vocab, i / w, level == 0 ? -1 : g.front[i], at + i % w * K, p);
    meet(e.layer, threads);
    if (level + 1 == base.levels) break;
    for (long b = share(e.batch, self, threads); b < share(e.batch, self + 1, threads); ++b)
      choose(g, b, level, at);
    meet(e.layer, threads);
  }
  for (long b = share(e.batch, self, threads); b < share(e.batch, self + 1, threads); ++b) prune(g, b);
}

template <class T, class Tree>
void grow(const Tree& g) {
#pragma omp parallel num_threads(g.base.drafter.layer.threads)
  grow_part<T>(g, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace
