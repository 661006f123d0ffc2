// Two calls of a speculative step: the target on a tree, and what follows from its logits
// (decoders.loops.speculative: `_verify` and `_settle`).
#pragma once

#include "acceptance.h"
#include "distribution.h"
#include "drafting.h"

extern "C" {

// A draft of N + 1 nodes for B rows; rows of the tree's shape may be shared (stride 0).
struct Nodes {
  long batch, count, children;  // B, N + 1, K
  const int64_t* codes;         // [B, N + 1]
  const int64_t* parents;       // [B, N + 1], rows parents_row apart
  long parents_row;
  const int64_t* level;         // [B, N + 1], rows level_row apart
  long level_row;
  const int64_t* child;         // [B, N + 1, K], rows child_row apart; 0: none
  long child_row;
  long by_leaf;                 // the table of paths is in order of leaves, not sorted (METHODS 6)
};

// The target on root and nodes.
struct Verify {
  Forward layer;          // R rows, N + 1 queries; its codes, places, slots and mask are written here
  Nodes tree;
  long prefix;
  const int64_t* length;  // [B] codes committed; the last one is the root
  const uint8_t* seen;    // [R, S], rows seen_row apart: open to every query
  long seen_row;
  const int64_t* tokens;  // [V] rows of the embedding; null: the codes themselves
  const void* head;       // packed [V, D]
  long vocab;
  float cfg;
  float* raw;             // [R, N + 1, V] with guidance
  float* logits;          // [B, N + 1, V]
};

// Acceptance, record and commit.
struct Settle {
  Nodes tree;
  long copies, vocab, depth;     // depth: of the tree
  const float* q;                // [B, N + 1, V]; null: deterministic children
  const float* logits;           // [B, N + 1, V]
  Filter filter;
  Rule rule;
  const float* uniform;          // [B, places, slots]
  long places, slots, accept_slot, target_slot;
  long image, prefix;            // codes of an image, places before it
  int64_t* length;               // [B], moves on
  const char* hidden;            // [R, N + 1, D]
  long state;                    // bytes of a state
  char* cache;                   // [lines, R, H, S, d], lines: keys and values of all layers
  long lines, heads, capacity, head;  // head: bytes of a key
  // What the drafter is told: up to depth + 1 codes a row.
  char* told_hidden;             // [R, depth + 1, D]
  int64_t *told_codes, *told_count, *told_start;  // [B, depth + 1], [B], [B]
  // The record, rows `width` wide.
  int64_t* codes;
  uint8_t* kind;
  int32_t* step;
  uint8_t* at;
  float *moved, *bound;
  long width;
  int16_t* accepted;             // [B, image]
  int64_t* steps;                // [B]
  uint8_t* bad;                  // [1]
  int64_t* drafter_calls;        // [B]
  long draft_calls;
  // The path: nodes [B, depth + 1] and accepted drafts [B]; p [B, N + 1, V] at its nodes.
  int64_t *path, *count;
  float* p;
  float* work;                   // [threads, 3, room], room: at least V and N + 1
  long room;
  int threads;
};

}  // extern "C"

namespace {

enum Kind : uint8_t { DRAFT = 1, RELAXED = 2, CORRECTED = 3, BONUS = 4 };

bool fits(const Nodes& tree, long vocab) {
  bool all = within(tree.codes, tree.batch * tree.count, vocab);
  for (long b = 0; b < tree.batch && all; ++b) {
    const int64_t *parents = tree.parents + b * tree.parents_row, *level = tree.level + b * tree.level_row;
    all &= parents[0] == 0 && level[0] == 0;
    for (long n = 1; n < tree.count; ++n) all &= parents[n] >= 0 && parents[n] < n && level[n] >= 0;
    const int64_t* child = tree.child + b * tree.child_row;
    all &= within(child, tree.count * tree.children, tree.count);
    for (long i = 0; i < tree.count * tree.children && all; ++i)
      all &= child[i] == 0 || (parents[child[i]] == i / tree.children &&
                               level[child[i]] == level[i / tree.children] + 1);
  }
  return all;
}

bool fits(const Verify& v) {
  const Forward& f = v.layer;
  bool all = fits(v.tree, v.tokens == nullptr ? f.embedded : v.vocab);
  for (long i = 0; i < v.tree.batch * v.tree.count && all && v.tokens != nullptr; ++i)
    all &= v.tokens[v.tree.codes[i]] >= 0 && v.tokens[v.tree.codes[i]] < f.embedded;
  for (long b = 0; b < v.tree.batch; ++b)
    all &= v.length[b] >= 1 && v.prefix + v.length[b] - 1 + v.tree.count <= f.slots;
  return all;
}

// Row r's codes, places, slots and mask: valid prefix, committed codes, ancestors and self.
void lay_out(const Verify& v, long r) {
  const Forward& f = v.layer;
  const long T = v.tree.count, S = f.slots, b = r % v.tree.batch;
  const long root = v.prefix + v.length[b] - 1;
  const int64_t *parents = v.tree.parents + b * v.tree.parents_row, *level = v.tree.level + b * v.tree.level_row;
  int64_t *codes = const_cast<int64_t*>(f.codes) + r * T, *place = const_cast<int64_t*>(f.place) + r * T;
  int64_t* slot = const_cast<int64_t*>(f.slot) + r * T;
  uint8_t* mask = const_cast<uint8_t*>(f.mask) + r * T * S;
  for (long n = 0; n < T; ++n) {
    const long code = v.tree.codes[b * T + n];
    codes[n] = v.tokens == nullptr ? code : v.tokens[code];
    place[n] = root + level[n];
    slot[n] = root + n;
    uint8_t* row = mask + n * S;
    if (n > 0) std::memcpy(row, mask + parents[n] * S, S);
    else {
      std::memcpy(row, v.seen + r * v.seen_row, root);
      std::memset(row + root, 0, S - root);
    }
    row[root + n] = 1;
  }
}

template <class T>
void verify(const Verify& v) {
  const Forward& f = v.layer;
  const Scratch at(f);
#pragma omp parallel num_threads(f.threads)
  {
    const int self = omp_get_thread_num(), threads = omp_get_num_threads();
    for (long r = share(f.rows, self, threads); r < share(f.rows, self + 1, threads); ++r) lay_out(v, r);
    meet(f, threads);
    work<T>(f, at, self, threads);
    meet(f, threads);
    logits_part(static_cast<const T*>(f.output), static_cast<const T*>(v.head), f.rows * f.queries, f.width,
                v.vocab, static_cast<int>(f.rows / v.tree.batch), v.cfg, v.raw, v.logits, self, threads);
  }
}

// One row's walk: nodes of the path, and of every depth what its code was.
struct Walk {
  const Settle& s;
  long b;
  float *left, *q, *residual;  // [room] each
  long last = 0, count = 0, final = 0;
  bool leaf = true;

  const int64_t* children(long n) const {
    return s.tree.child + b * s.tree.child_row + n * s.tree.children;
  }
  long code(long n) const { return s.tree.codes[b * s.tree.count + n]; }
  float u(long place, long slot) const {
    const long most = s.places - 1;
    return s.uniform[(b * s.places + (place < most ? place : most)) * s.slots + slot];
  }
  float* p_of(long n) const { return s.p + (b * s.tree.count + n) * s.vocab; }
  const float* logits_of(long n) const { return s.logits + (b * s.tree.count + n) * s.vocab; }
  void distribution(long n) const {
    if (!probabilities(logits_of(n), s.filter, s.vocab, p_of(n))) *s.bad = 1;
  }
  void note(long depth, const Verdict& found, Kind kind) const {
    const long to = b * s.width + s.length[b] + depth;
    s.kind[to] = kind;
    s.moved[to] = found.moved;
    s.bound[to] = found.bound;
  }
  void sampled();
  bool earlier(long n, long other) const;
  void greedy();
  void finish();
};

// The first accepted child of every node, from the root on (METHODS 3, 4).
void Walk::sampled() {
  int64_t* path = s.path + b * (s.depth + 1);
  path[0] = 0;
  for (;;) {
    const int64_t* child = children(last);
    distribution(last);
    float* now = p_of(last);
    const float* given = s.q == nullptr ? nullptr : s.q + (b * s.tree.count + last) * s.vocab;
    Verdict first{};
    long next = 0;
    leaf = true;
    for (long j = 0; j < s.tree.children && next == 0; ++j) {
      if (child[j] == 0) continue;
      const long x = code(child[j]);
      const Verdict found = test_child(now, given, x, s.rule);
      if (j == 0) first = found;
      leaf = false;
      const float drawn = u(s.length[b] + count, s.accept_slot + j);
      if (drawn < found.accept) {
        note(count, found, drawn >= found.strict ? RELAXED : DRAFT);
        next = child[j];
        continue;
      }
      if (now != residual) {
        std::memcpy(residual, now, s.vocab * sizeof(float));
        now = residual;
        if (given != nullptr) given = static_cast<const float*>(std::memcpy(q, given, s.vocab * sizeof(float)));
      }
      reject_child(residual, given == nullptr ? nullptr : q, left, x, found, s.rule, s.vocab);
    }
    if (next == 0) {
      final = sample(now, s.vocab, u(s.length[b] + count, s.target_slot));
      return note(count, first, leaf ? BONUS : CORRECTED);
    }
    path[++count] = last = next;
  }
}

// Of two nodes at one depth: whether n is on the earlier row of the table of root-to-leaf paths
// (decoders.verify.children.table_order). `q` holds the lowest leaf below every node where leaves decide.
bool Walk::earlier(long n, long other) const {
  if (s.tree.by_leaf) return q[n] < q[other];
  const int64_t* parents = s.tree.parents + b * s.tree.parents_row;
  while (parents[n] != parents[other]) n = parents[n], other = parents[other];
  return n < other;
}

// The longest path that was accepted whole, the first row of the table on ties (METHODS 6): drafts whose p_A(x)
// is the largest entry of p_A. `left` keeps which nodes are on an accepted path.
void Walk::greedy() {
  const int64_t *parents = s.tree.parents + b * s.tree.parents_row, *level = s.tree.level + b * s.tree.level_row;
  int64_t* path = s.path + b * (s.depth + 1);
  const auto judged = [&](long n, long x) {
    const float* p = p_of(n);
    Verdict found = test_child(p, nullptr, x, s.rule);
    const long top = argmax(p, s.vocab);
    found.strict = top == x;
    found.accept = found.strict > 0 || (s.rule.kind != 0 && p[x] + found.moved >= p[top]);
    return found;
  };
  const auto none = static_cast<float>(s.tree.count);
  for (long n = 0; n < s.tree.count; ++n) q[n] = none;
  for (long n = s.tree.count - 1; n > 0; --n) {  // children come after their parents
    if (q[n] == none) q[n] = static_cast<float>(n);
    if (q[n] < q[parents[n]]) q[parents[n]] = q[n];
  }
  std::memset(left, 0, s.tree.count * sizeof(float));
  left[0] = 1;
  for (long n = 0; n < s.tree.count; ++n) {
    if (left[n] == 0) continue;
    if (level[n] > level[last] || (level[n] == level[last] && earlier(n, last))) last = n;
    distribution(n);
    for (long j = 0; j < s.tree.children; ++j) {
      const long child = children(n)[j];
      if (child != 0 && judged(n, code(child)).accept > 0) left[child] = 1;
    }
  }
  count = level[last];
  for (long n = last, d = count; d >= 0; n = parents[n], --d) path[d] = n;
  for (long d = 0; d < count; ++d) {
    const Verdict found = judged(path[d], code(path[d + 1]));
    note(d, found, found.strict > 0 ? DRAFT : RELAXED);
  }
  leaf = true;
  for (long j = 0; j < s.tree.children; ++j) leaf &= children(last)[j] == 0;
  const long first = children(last)[0];
  note(count, first == 0 ? Verdict{} : judged(last, code(first)), leaf ? BONUS : CORRECTED);
  final = argmax(logits_of(last), s.vocab);
}

// Codes and counts into the record, the path's states to the drafter, its keys and values behind the committed
// ones. A path's nodes ascend and node n is at least as deep as its place
// in the path, so no slot is written that is still to be read.
void Walk::finish() {
  const long start = s.length[b], more = count + 1, D = s.depth + 1, before = s.steps[b];
  int64_t* path = s.path + b * D;
  for (long i = more; i < D; ++i) path[i] = last;
  s.count[b] = count;
  for (long i = 0; i < more; ++i) {
    const long to = b * s.width + start + i, x = i < count ? code(path[i + 1]) : final;
    s.codes[to] = s.told_codes[b * D + i] = x;
    s.step[to] = static_cast<int32_t>(before + 1);
    s.at[to] = static_cast<uint8_t>(i < count ? i + 1 : 0);
  }
  s.told_count[b] = more;
  s.told_start[b] = start;
  const long left_over = s.image - start;
  s.accepted[b * s.image + before] = static_cast<int16_t>(count < left_over ? count : left_over);
  s.length[b] = start + more < s.image ? start + more : s.image;
  s.steps[b] = before + 1;
  s.drafter_calls[b] += s.draft_calls;
  const long rows = s.copies * s.tree.batch;
  for (long r = b; r < rows; r += s.tree.batch) {
    for (long i = 0; i < D; ++i)
      std::memcpy(s.told_hidden + (r * D + i) * s.state, s.hidden + (r * s.tree.count + path[i]) * s.state,
                  s.state);
    for (long line = 0; line < s.lines; ++line)
      for (long h = 0; h < s.heads; ++h) {
        char* root = s.cache + (((line * rows + r) * s.heads + h) * s.capacity + s.prefix + start - 1) * s.head;
        for (long i = 1; i <= count; ++i)
          if (path[i] != i) std::memcpy(root + i * s.head, root + path[i] * s.head, s.head);
      }
  }
}

bool fits(const Settle& s) {
  bool all = fits(s.tree, s.vocab);
  for (long b = 0; b < s.tree.batch; ++b)
    all &= s.steps[b] >= 0 && s.steps[b] < s.image && s.length[b] >= 1 && s.length[b] <= s.image && s.length[b] + s.depth + 1 <= s.width &&
           s.prefix + s.length[b] - 1 + s.tree.count <= s.capacity;
  for (long b = 0; b < s.tree.batch; ++b)
    for (long n = 0; n < s.tree.count; ++n) all &= s.tree.level[b * s.tree.level_row + n] <= s.depth;
  return all;
}

void settle(const Settle& s) {
#pragma omp parallel for num_threads(s.threads) schedule(dynamic) if (s.tree.batch > 1)
  for (long b = 0; b < s.tree.batch; ++b) {
    float* work = s.work + omp_get_thread_num() * 3 * s.room;
    Walk walk{s, b, work, work + s.room, work + 2 * s.room};
    if (s.length[b] >= s.image) {
      s.told_count[b] = 1;
      s.told_start[b] = s.image;
      s.count[b] = 0;
      continue;
    }
    if (s.filter.temperature > 0) walk.sampled();
    else walk.greedy();
    walk.finish();
  }
}

}  // namespace
