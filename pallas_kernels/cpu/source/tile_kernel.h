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
template <class Kind>
constexpr bool IN_TILES = std::is_same_v<Kind, TiledBfloat16>;
// Rows of a block, which the micro kernel takes together.
template <class Kind>
constexpr int MOST_ROWS_OF = IN_TILES<Kind> ? MOST_TILED_ROWS : MOST_ROWS;

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

// The rows as tiles of 16 steps: so many words from a row to the next, and from a step to the next.
struct LeftTiles {
  const uint32_t* data;
  int rows;
  int64_t pitch, next;
};
// Rows that pack_in_tiles() has written.
inline LeftTiles packed_tiles(const uint32_t* data, int rows) {
  return {data, rows, TILE_WORDS, rows * TILE_WORDS};
}
// Writes the words of rows as [step / 16][rows][16], with zeros behind the last step.
inline void pack_in_tiles(const uint32_t* rows, int count, int64_t pitch, int64_t words,
                          uint32_t* to) {
  for (int64_t w = 0; w < words; w += TILE_WORDS)
    for (int r = 0; r < count; r++, to += TILE_WORDS) {
      const int64_t some = std::min(TILE_WORDS, words - w);
      std::memcpy(to, rows + r * pitch + w, some * sizeof *to);
      std::memset(to + some, 0, (TILE_WORDS - some) * sizeof *to);
    }
}

template <int SUM0, int SUM1>
void begin_sums(const float* sums, int64_t pitch, bool fresh) {
  if (fresh) return clear_tile<SUM0>(), clear_tile<SUM1>();
  load_tile<SUM0>(sums, pitch * sizeof(float));
  load_tile<SUM1>(sums + TILE_WORDS, pitch * sizeof(float));
}
template <int SUM0, int SUM1, int LEFT>
void add_tiles(const uint32_t* left, int64_t pitch) {
  load_tile<LEFT>(left, pitch * sizeof(uint32_t));
  dot_tiles<SUM0, LEFT, RIGHT0>();
  dot_tiles<SUM1, LEFT, RIGHT1>();
}
template <int SUM0, int SUM1>
void end_sums(float* sums, int64_t pitch) {
  store_tile<SUM0>(sums, pitch * sizeof(float));
  store_tile<SUM1>(sums + TILE_WORDS, pitch * sizeof(float));
}

// sums [rows][pitch] (+)= left * right, in tiles that are shaped for the rows. Behind the last step
// the left operand has zeros.
inline void multiply_in_tiles(LeftTiles left, const char* right, int64_t steps, float* sums,
                              int64_t pitch, bool fresh, Ahead ahead) {
  constexpr int64_t PITCH = Bfloat16::STEP_BYTES;
  alignas(64) char last[TILE_ROWS * PITCH];
  const bool both = left.rows > TILE_ROWS;
  float* later = sums + TILE_ROWS * pitch;
  begin_sums<SUM00, SUM01>(sums, pitch, fresh);
  if (both) begin_sums<SUM10, SUM11>(later, pitch, fresh);
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
    add_tiles<SUM00, SUM01, LEFT0>(left.data, left.pitch);
    if (both) add_tiles<SUM10, SUM11, LEFT1>(left.data + TILE_ROWS * left.pitch, left.pitch);
    left.data += left.next;
  }
  end_sums<SUM00, SUM01>(sums, pitch);
  if (both) end_sums<SUM10, SUM11>(later, pitch);
}

}  // namespace jengine
