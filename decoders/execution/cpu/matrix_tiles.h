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

constexpr int BLOCKS = 4;      // of 16 rows, that share the reading of a tile of weights

// Which tile holds what: 0 to 3 the sums of a block; factors and weights of 32 inputs; and of those left.
enum Tile { FACTORS = BLOCKS, FACTORS_LEFT, WEIGHTS, WEIGHTS_LEFT };

// What the tiles are shaped like, at most 16 rows of 64 bytes each; those that are not set are not there.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, long count, long bytes) {
    rows[tile] = static_cast<uint8_t>(count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
  void use() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};
SMALL void release_tiles() { asm volatile("tilerelease"); }

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

// Rows of B_ blocks times one panel w [inputs / 2][16][2]: sums of block b to out[b], rows `apart` bytes apart.
// What lies behind in memory is read next, so nothing is asked for: the processor sees it coming.
template <int B_>
inline void tile_panel(const uint16_t* const (&a)[BLOCKS], long stride, const uint16_t* w, long inputs,
                       V* const (&out)[BLOCKS], long apart) {
  each<B_>([&](auto b) SMALL_LAMBDA { zero_tile<b>(); });
  long k = 0;
  for (; k + DEEP <= inputs; k += DEEP) {
    load_tile<WEIGHTS>(w + k * LANES, 64);
    each<B_>([&](auto b) SMALL_LAMBDA {
      load_tile<FACTORS>(a[b] + k, stride * 2);
      multiply_tiles<b, FACTORS, WEIGHTS>();
    });
  }
  if (k < inputs) {
    load_tile<WEIGHTS_LEFT>(w + k * LANES, 64);
    each<B_>([&](auto b) SMALL_LAMBDA {
      load_tile<FACTORS_LEFT>(a[b] + k, stride * 2);
      multiply_tiles<b, FACTORS_LEFT, WEIGHTS_LEFT>();
    });
  }
  each<B_>([&](auto b) SMALL_LAMBDA { store_tile<b>(out[b], apart); });
}

// As `product` (products.h), two panels at a time, one behind the other as they lie in memory. A block of fewer
// than 16 rows behind others begins earlier, over rows that are done already, so that all have one shape.
template <class Use>
void tile_product(const uint16_t* a, long stride, const uint16_t* w, long inputs, long first, long last,
                  long begin, long end, Use use) {
  const long rows = last - first < TILE_ROWS ? last - first : TILE_ROWS;
  const long left = inputs % DEEP;
  TileShapes shapes;
  for (int n = 0; n < BLOCKS; ++n) shapes.set(n, rows, 64);
  shapes.set(FACTORS, rows, 64);
  shapes.set(WEIGHTS, DEEP / 2, 64);
  if (left > 0) {
    shapes.set(FACTORS_LEFT, rows, left * 2);
    shapes.set(WEIGHTS_LEFT, left / 2, 64);
  }
  shapes.use();
  alignas(64) V sums[BLOCKS * TILE_ROWS * 2];
  for (long p = begin; p < end;) {
    const int count = end - p >= 2 ? 2 : 1;
    for (long m = first; m < last; m += BLOCKS * TILE_ROWS) {
      const long there = last - m < BLOCKS * TILE_ROWS ? last - m : BLOCKS * TILE_ROWS;
      const long blocks = (there + TILE_ROWS - 1) / TILE_ROWS;
      const auto row = [&](long b) {
        const long at = m + b * TILE_ROWS;
        return at + rows <= last ? at : last - rows;
      };
      const uint16_t* factors[BLOCKS];
      V* out[BLOCKS];
      for (int n = 0; n < count; ++n) {
        for (long b = 0; b < blocks; ++b) {
          factors[b] = a + row(b) * stride;
          out[b] = sums + b * TILE_ROWS * count + n;
        }
        dispatch<BLOCKS>(blocks, [&](auto all) SMALL_LAMBDA {
          tile_panel<all>(factors, stride, w + (p + n) * LANES * inputs, inputs, out, count * 64);
        });
      }
      for (long b = 0; b < blocks; ++b)
        for (long i = m + b * TILE_ROWS - row(b); i < rows; ++i)
          use(row(b) + i, p, count, sums + (b * TILE_ROWS + i) * count);
    }
    p += count;
  }
  release_tiles();
}

}  // namespace
#endif
