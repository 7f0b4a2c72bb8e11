// The micro kernel in matrix tiles: up to 32 rows times a panel, whose halves are two right tiles.
//
// Every number of rows goes through tiles, also one: a sum has one order over k, so its bits do not
// depend on the batch. They are not those of other builds: the processor rounds in another order,
// and takes subnormal numbers for zero.
#pragma once

#include <algorithm>

#include "micro_kernel.h"
#include "tiles.h"

namespace jengine {

constexpr int MOST_TILED_ROWS = 2 * TILE_ROWS;

struct TiledBfloat16 : Bfloat16 {
  using Converted = TiledBfloat16;
};

// Tiles of one thread, shaped for a number of rows, until this is gone.
class ShapedTiles {
 public:
  ShapedTiles() = default;
  ShapedTiles(const ShapedTiles&) = delete;
  ~ShapedTiles() {
    if (rows_) release_tiles();
  }
  void shape(int rows) {
    if (rows == rows_) return;
    configure_tiles(std::min(rows, TILE_ROWS), std::max(rows - TILE_ROWS, 0));
    rows_ = rows;
  }

 private:
  int rows_ = 0;
};

template <int SUM0, int SUM1>
void begin_sums(const float* sums, bool fresh) {
  if (fresh) return clear_tile<SUM0>(), clear_tile<SUM1>();
  load_tile<SUM0>(sums, PANEL * sizeof(float));
  load_tile<SUM1>(sums + TILE_WORDS, PANEL * sizeof(float));
}
template <int SUM0, int SUM1, int LEFT>
void add_tiles(const uint32_t* left) {
  load_tile<LEFT>(left, TILE_BYTES);
  dot_tiles<SUM0, LEFT, RIGHT0>();
  dot_tiles<SUM1, LEFT, RIGHT1>();
}
template <int SUM0, int SUM1>
void end_sums(float* sums) {
  store_tile<SUM0>(sums, PANEL * sizeof(float));
  store_tile<SUM1>(sums + TILE_WORDS, PANEL * sizeof(float));
}

// sums [rows][32] (+)= left * right, in tiles that are shaped for the rows. The left operand is
// [step / 16][rows][16], with zeros behind the last step.
inline void multiply_in_tiles(const uint32_t* left, int rows, const char* right, int64_t steps,
                              float* sums, bool fresh, Ahead ahead) {
  constexpr int64_t PITCH = Bfloat16::STEP_BYTES, SECOND = TILE_ROWS * TILE_WORDS;
  alignas(64) char last[TILE_ROWS * PITCH];
  const bool both = rows > TILE_ROWS;
  float* later = sums + TILE_ROWS * PANEL;
  begin_sums<SUM00, SUM01>(sums, fresh);
  if (both) begin_sums<SUM10, SUM11>(later, fresh);
  for (int64_t step = 0; step < steps; step += TILE_ROWS, right += TILE_ROWS * PITCH) {
    if (steps - step < TILE_ROWS) {  // what follows the panel is another one, or no memory
      std::memset(last, 0, sizeof last);
      std::memcpy(last, right, (steps - step) * PITCH);
      right = last;
    }
    for (int64_t at = 0; ahead.at && at < TILE_ROWS * ahead.bytes; at += 64) prefetch(ahead.at + at);
    ahead.at += ahead.at ? TILE_ROWS * ahead.bytes : 0;
    load_tile<RIGHT0>(right, PITCH);
    load_tile<RIGHT1>(right + TILE_BYTES, PITCH);
    add_tiles<SUM00, SUM01, LEFT0>(left);
    if (both) add_tiles<SUM10, SUM11, LEFT1>(left + SECOND);
    left += rows * TILE_WORDS;
  }
  end_sums<SUM00, SUM01>(sums);
  if (both) end_sums<SUM10, SUM11>(later);
}

}  // namespace jengine
