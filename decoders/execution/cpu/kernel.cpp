// A decoding step's forwards at a handful of rows, for CPUs: what Python calls.
//
// Why: at 2 to 50 rows a library spends more time around a product than in it, and an interpreter more
// around an operator than either. Here the weights are packed once, and a whole forward is one call.
// With AMX products and attention use its tiles (matrix_tiles.h), with AVX512-BF16 its dot instruction; all
// else is plain vector code, in the lengths that the processor has (vectors.h).
#include <omp.h>

#include <cstring>

#include "acceptance.h"
#include "advancing.h"
#include "drafting.h"
#include "growing.h"
#include "speculation.h"
#include "stepping.h"

extern "C" {

// All calls but `lantern_size` and `lantern_scratch` return 0, or 1 where an index lies outside its table: then nothing was
// written.

// p [M, V] becomes the residuals; q [M, V] (or null) is used up; verdicts [4, M, K]; left [threads, V].
int lantern_judge(float* p, float* q, float* left, const int64_t* codes, const uint8_t* valid,
                  const Rule* rule, long nodes, long vocab, long children, float* verdicts, int threads) {
  const long all = nodes * children;
  if (!within(codes, all, vocab)) return 1;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long m = 0; m < nodes; ++m) {
    float* at = verdicts + m * children;
    judge_node(p + m * vocab, q == nullptr ? nullptr : q + m * vocab, left + omp_get_thread_num() * vocab,
               codes + m * children, valid + m * children, *rule, vocab, children,
               Judged{at, at + all, at + 2 * all, at + 3 * all});
  }
  return 0;
}

// Bytes of a structure, so that Python's declaration can be compared; -1 for an unknown name.
long lantern_size(const char* name) {
#define SIZE(kind) \
  if (std::strcmp(name, #kind) == 0) return sizeof(kind)
  SIZE(LayerWeights);
  SIZE(Forward);
  SIZE(Filter);
  SIZE(Rule);
  SIZE(Expand);
  SIZE(Advance);
  SIZE(Grow);
  SIZE(GrowStatic);
  SIZE(GrowDynamic);
  SIZE(NextCode);
  SIZE(Nodes);
  SIZE(Verify);
  SIZE(Settle);
#undef SIZE
  return -1;
}

long lantern_scratch(const Forward* f) { return Scratch(*f).floats(f->threads); }

int lantern_forward(const Forward* f, int half) {
  if (!fits(*f)) return 1;
  if (half) forward<uint16_t>(*f);
  else forward<float>(*f);
  return 0;
}

int lantern_advance(const Advance* a, int half) {
  if (!fits(*a)) return 1;
  if (half) advance<uint16_t>(*a);
  else advance<float>(*a);
  return 0;
}

int lantern_grow_static(const GrowStatic* g, int half) {
  if (!fits(*g)) return 1;
  if (half) grow<uint16_t>(*g);
  else grow<float>(*g);
  return 0;
}

int lantern_grow_dynamic(const GrowDynamic* g, int half) {
  if (!fits(*g)) return 1;
  if (half) grow<uint16_t>(*g);
  else grow<float>(*g);
  return 0;
}

int lantern_verify(const Verify* v, int half) {
  if (!fits(*v)) return 1;
  if (half) verify<uint16_t>(*v);
  else verify<float>(*v);
  return 0;
}

int lantern_settle(const Settle* s) {
  if (!fits(*s)) return 1;
  settle(*s);
  return 0;
}

int lantern_next(const NextCode* n, int half) {
  if (!fits(*n)) return 1;
  if (half) next_codes<uint16_t>(*n);
  else next_codes<float>(*n);
  return 0;
}

// hidden [M, D], rows [cond; uncond] of `copies` = 2 -> out [M / copies, V]; raw [M, V].
int lantern_logits(const void* hidden, const void* head, long rows, long width, long vocab, int copies,
                   float cfg, float* raw, float* out, int threads, int half) {
  if (half)
    logits(static_cast<const uint16_t*>(hidden), static_cast<const uint16_t*>(head), rows, width, vocab,
           copies, cfg, raw, out, threads);
  else
    logits(static_cast<const float*>(hidden), static_cast<const float*>(head), rows, width, vocab, copies,
           cfg, raw, out, threads);
  return 0;
}

int lantern_pack(const void* w, long outputs, long inputs, void* out, int half) {
  if (half) pack(static_cast<const uint16_t*>(w), outputs, inputs, static_cast<uint16_t*>(out));
  else pack(static_cast<const float*>(w), outputs, inputs, static_cast<float*>(out));
  return 0;
}

int lantern_linear(const void* x, const void* w, const void* bias, void* y, long rows, long inputs,
                   long outputs, int threads, int half, long times) {
  if (half)
    linear(static_cast<const uint16_t*>(x), static_cast<const uint16_t*>(w),
           static_cast<const uint16_t*>(bias), static_cast<uint16_t*>(y), rows, inputs, outputs, threads,
           times);
  else
    linear(static_cast<const float*>(x), static_cast<const float*>(w), static_cast<const float*>(bias),
           static_cast<float*>(y), rows, inputs, outputs, threads, times);
  return 0;
}

}  // extern "C"
