// Products of bfloat16 by the processor's matrix unit (AMX): up to 16 rows times 16 outputs per instruction.
//
// Why: verifying a draft reads the weights once for all its codes, so a unit that multiplies 16 rows in the
// time of one makes their arithmetic free, and what is left is memory: what a GPU's tensor cores do.
// Packed panels [inputs / 2][16][2] are what its right-hand tiles want. A row's sums do not depend on the rows
// beside it, and one row takes this path too.
#pragma once

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#define MATRIX_TILES 1

namespace {

constexpr int TILE_ROWS = 16;  // rows of a tile
constexpr int DEEP = 32;       // inputs of a tile

// Linux gives a process the tiles' registers on request; whether it did.
inline bool tiles_granted() {
  constexpr long request = 0x1023, data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, request, data) == 0;
  return granted;
}

// Which tile holds what: 0 to 3 sums of a panel each; factors and weights of 32 inputs; and of those left.
enum Tile { FACTORS = 4, FACTORS_LEFT = 5, WEIGHTS = 6, WEIGHTS_LEFT = 7 };

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  TileShapes(int count, int left) {
    const auto shape = [this](int tile, int tile_rows, int bytes) {
      rows[tile] = static_cast<uint8_t>(tile_rows);
      row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    for (int n = 0; n < 4; ++n) shape(n, count, 64);
    shape(FACTORS, count, 64);
    shape(WEIGHTS, DEEP / 2, 64);
    if (left == 0) return;
    shape(FACTORS_LEFT, count, left * 2);
    shape(WEIGHTS_LEFT, left / 2, 64);
  }
};

// The instructions take the numbers of tiles as part of themselves.
template <int n>
SMALL void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(n)); }
template <int n>
SMALL void load_tile(const void* p, long stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(n), "r"(p), "r"(stride) : "memory");
}
template <int n>
SMALL void store_tile(void* p, long stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(n), "r"(p), "r"(stride) : "memory");
}
template <int sums, int factors, int weights>
SMALL void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(factors), "i"(weights));
}

// out [rows, N_] panels = a [rows, inputs] times N_ panels; what lies at `ask` is asked for on the way.
template <int N_>
inline void tile_block(const uint16_t* a, long stride, const uint16_t* w, const uint16_t* ask, long inputs,
                       V* out) {
  const long panel = inputs * LANES;
  each<N_>([&](auto n) SMALL_LAMBDA { zero_tile<n>(); });
  long k = 0;
  for (; k + DEEP <= inputs; k += DEEP) {
    load_tile<FACTORS>(a + k, stride * 2);
    each<N_>([&](auto n) SMALL_LAMBDA {
      const long at = n * panel + k * LANES;
      for (int i = 0; i < DEEP * LANES; i += DEEP) __builtin_prefetch(ask + at + i, 0, 2);
      load_tile<WEIGHTS>(w + at, 64);
      multiply_tiles<n, FACTORS, WEIGHTS>();
    });
  }
  if (k < inputs) {
    load_tile<FACTORS_LEFT>(a + k, stride * 2);
    each<N_>([&](auto n) SMALL_LAMBDA {
      load_tile<WEIGHTS_LEFT>(w + n * panel + k * LANES, 64);
      multiply_tiles<n, FACTORS_LEFT, WEIGHTS_LEFT>();
    });
  }
  each<N_>([&](auto n) SMALL_LAMBDA { store_tile<n>(out + n, N_ * 64); });
}

// As `product` (products.h). Rows go in blocks of 16; a last one of fewer begins earlier, over rows that are
// done already, so that all blocks have one shape.
template <class Use>
void tile_product(const uint16_t* a, long stride, const uint16_t* w, long inputs, long first, long last,
                  long begin, long end, Use use, const uint16_t* next) {
  const int rows = static_cast<int>(last - first < TILE_ROWS ? last - first : TILE_ROWS);
  const TileShapes shapes(rows, static_cast<int>(inputs % DEEP));
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  alignas(64) V out[TILE_ROWS * 4];
  for (long p = begin; p < end;) {
    const int count = end - p >= 4 ? 4 : (end - p >= 2 ? 2 : 1);
    const uint16_t* panels = w + p * LANES * inputs;
    const uint16_t* behind = p + count < end || next == nullptr ? panels + count * LANES * inputs : next;
    for (long done = first; done < last;) {
      const long from = done + rows <= last ? done : last - rows;
      const uint16_t* factors = a + from * stride;
      if (count == 4) tile_block<4>(factors, stride, panels, behind, inputs, out);
      else if (count == 2) tile_block<2>(factors, stride, panels, behind, inputs, out);
      else tile_block<1>(factors, stride, panels, behind, inputs, out);
      for (long m = done; m < from + rows; ++m) use(m, p, count, out + (m - from) * count);
      done = from + rows;
    }
    p += count;
  }
  asm volatile("tilerelease");
}

}  // namespace
#endif
