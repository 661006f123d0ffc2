// Layers and matrices of small batches on a CPU, as torch operators.
//
// Why: at 2 to 50 rows a library spends more time around a product than in it. Here the weights are packed
// once, and all layers of a forward are one operator. With AMX, products and attention use its tiles
// (matrix_tiles.h), with AVX512-BF16 its dot instruction; all else is plain vector code, in the lengths that
// the processor has (vectors.h). decoders/execution/cpu/layers.py says what the operators compute.
#include <omp.h>
#include <unistd.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

#include "layers.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void require(bool right, const char* what) {
  STD_TORCH_CHECK(right, "the CPU kernel expected ", what, "; backend.execution=eager runs without it");
}

// OpenMP's threads stay behind in the parent of a fork; its child would wait for them for ever.
void require_same_process() {
  static const pid_t loaded = getpid();
  STD_TORCH_CHECK(getpid() == loaded,
                  "this process was forked after its parent had used the CPU kernel, whose threads a fork does not "
                  "copy: start processes with spawn (multiprocessing.get_context(\"spawn\"), or "
                  "set_start_method(\"spawn\")), or decode in the parent only after the fork");
}

bool is_half(const Tensor& x) { return x.scalar_type() == ScalarType::BFloat16; }

void require_weights(const Tensor& weights, const Tensor& x, const char* what) {
  require_same_process();
  const auto type = x.scalar_type();
  require((type == ScalarType::BFloat16 || type == ScalarType::Float) && type == weights.scalar_type() &&
              x.is_contiguous(),
          what);
}

template <class T>
const T* data(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

// A thread's own memory, kept from call to call and zeros at first.
float* scratch(long floats) {
  thread_local std::vector<float> buffer;
  if (static_cast<long>(buffer.size()) < floats) buffer.resize(floats);
  return buffer.data();
}

Tensor run_layers(Tensor weights, Tensor norms, Tensor rope, int64_t count, int64_t heads, int64_t ffn, double eps,
              bool norm_first, bool norm_last, Tensor x, Tensor positions, Tensor slots, Tensor mask, Tensor cache,
              std::optional<Tensor> wanted) {
  require_weights(weights, x, "states [R, T, D] in the dtype of the weights, contiguous");
  require(cache.scalar_type() == x.scalar_type() && cache.is_contiguous(), "a cache in the dtype of the weights");
  require(positions.scalar_type() == ScalarType::Long && slots.scalar_type() == ScalarType::Long &&
              (mask.scalar_type() == ScalarType::Bool || mask.scalar_type() == ScalarType::Float) &&
              mask.stride(2) == 1 && (!wanted.has_value() || wanted->is_contiguous()),
          "positions, slots and wanted queries in int64 and a mask in bool or float32");
  const long outputs = wanted.has_value() ? wanted->size(1) : x.size(1);
  Tensor out = torch::stable::new_empty(x, {x.size(0), outputs, x.size(2)});
  const long width = x.size(2), parts = norm_first ? 2 : 1;
  const bool half = is_half(x);
  const long item = half ? 2 : 4, layer = 4 * width * width + 3 * width * ffn;
  const char *matrices = data<char>(weights), *scales = data<char>(norms);
  std::vector<LayerWeights> table(count);
  for (long i = 0; i < count; ++i) {
    const char *first = matrices + i * layer * item, *scale = scales + i * parts * width * item;
    LayerWeights& w = table[i];
    w.attention_norm = norm_first ? scale : nullptr;
    w.ffn_norm = scale + (parts - 1) * width * item;
    w.wqkv = first;
    w.wo = first + 3 * width * width * item;
    w.w13 = first + 4 * width * width * item;
    w.w2 = first + (4 * width * width + 2 * width * ffn) * item;
  }
  Forward f{x.size(0), x.size(1), width, heads, ffn, count, mask.size(2), static_cast<float>(eps),
            omp_get_max_threads(), table.data(), norm_last ? scales + count * parts * width * item : nullptr,
            x.const_data_ptr(), out.mutable_data_ptr(), cache.mutable_data_ptr(), data<float>(rope),
            rope.size(0), data<int64_t>(positions), positions.stride(0), positions.stride(1), data<int64_t>(slots),
            slots.stride(0), slots.stride(1), mask.const_data_ptr(), mask.scalar_type() == ScalarType::Float,
            mask.stride(0), mask.stride(1), wanted.has_value() ? data<int64_t>(*wanted) : nullptr, outputs, nullptr};
  require(fits(f), "positions and slots inside the rotary table and the cache, and wanted queries that there are");
  f.scratch = scratch(Scratch(f).floats(f.threads));
  if (half) forward<uint16_t>(f);
  else forward<float>(f);
  return out;
}

Tensor run_linear(Tensor weights, std::optional<Tensor> bias, int64_t outputs, Tensor x, bool wide) {
  require_weights(weights, x, "inputs [..., in] in the dtype of the weights, contiguous");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  const long inputs = shape.back(), rows = x.numel() / inputs;
  shape.back() = outputs;
  Tensor out = torch::stable::new_empty(x, shape, wide ? ScalarType::Float : x.scalar_type());
  const int threads = omp_get_max_threads();
  const float* added = bias.has_value() ? data<float>(*bias) : nullptr;
  const auto run = [&](auto* weight, auto* to) {
    linear(data<std::decay_t<decltype(*weight)>>(x), weight, added, to, rows, inputs, outputs, threads);
  };
  void* to = out.mutable_data_ptr();
  if (!is_half(x)) run(data<float>(weights), static_cast<float*>(to));
  else if (wide) run(data<uint16_t>(weights), static_cast<float*>(to));
  else run(data<uint16_t>(weights), static_cast<uint16_t*>(to));
  return out;
}

Tensor run_packed(Tensor weight) {
  const long outputs = weight.size(0), inputs = weight.size(1);
  const long padded = (outputs + LANES - 1) / LANES * LANES;
  require_weights(weight, weight, "weights [out, in] in bfloat16 or float32, contiguous");
  Tensor out = torch::stable::new_empty(weight, {padded * inputs});
  if (is_half(weight))
    pack(data<uint16_t>(weight), outputs, inputs, static_cast<uint16_t*>(out.mutable_data_ptr()));
  else
    pack(data<float>(weight), outputs, inputs, static_cast<float*>(out.mutable_data_ptr()));
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(lantern_cpu, library) {
  library.def("packed(Tensor weight) -> Tensor");
  library.def("linear(Tensor weights, Tensor? bias, int outputs, Tensor x, bool wide) -> Tensor");
  library.def(
      "layers(Tensor weights, Tensor norms, Tensor rope, int count, int heads, int ffn, float eps, "
      "bool norm_first, bool norm_last, Tensor x, Tensor positions, Tensor slots, Tensor mask, Tensor(a!) cache, "
      "Tensor? wanted=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(lantern_cpu, CPU, library) {
  library.impl("packed", TORCH_BOX(&run_packed));
  library.impl("linear", TORCH_BOX(&run_linear));
  library.impl("layers", TORCH_BOX(&run_layers));
}

}  // namespace
