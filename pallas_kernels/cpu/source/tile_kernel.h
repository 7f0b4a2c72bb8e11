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
constexpr int64_t ROW_OF_TILES = 2 * TILE_BYTES;  // of two side by side: a step of a panel

// Kinds of right operands that are multiplied in tiles.
struct Tiled {};
template <class Kind>
constexpr bool IN_TILES = std::is_base_of_v<Tiled, Kind>;
struct TiledBfloat16 : Bfloat16, Tiled {
  using Converted = TiledBfloat16;
};
// Codes of pairs, whose numbers are written to a right tile.
template <class Pairs>
struct TiledCodes : Pairs, Tiled {
  using Converted = TiledBfloat16;
};
// Integers; their sums are exact, so they have the bits of other builds.
template <class Quads>
struct TiledQuads : Quads, Tiled {
  using Converted = TiledQuads;
};
// Builds that have no tiles need not compile them.
using PairsInTiles = std::conditional_t<BUILT_WITH_TILES, TiledBfloat16, Bfloat16>;
template <class Quads>
using QuadsInTiles = std::conditional_t<BUILT_WITH_TILES, TiledQuads<Quads>, Quads>;
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
template <class Kind, int SUM0, int SUM1, int LEFT>
void add_tiles(const uint32_t* left, int64_t pitch) {
  load_tile<LEFT>(left, pitch * sizeof(uint32_t));
  if constexpr (Kind::DEPTH == 4) {
    dot_byte_tiles<SUM0, LEFT, RIGHT0>(), dot_byte_tiles<SUM1, LEFT, RIGHT1>();
  } else {
    dot_tiles<SUM0, LEFT, RIGHT0>(), dot_tiles<SUM1, LEFT, RIGHT1>();
  }
}
template <int SUM0, int SUM1>
void end_sums(float* sums, int64_t pitch) {
  store_tile<SUM0>(sums, pitch * sizeof(float));
  store_tile<SUM1>(sums + TILE_WORDS, pitch * sizeof(float));
}

// So many steps of a panel as two right tiles side by side, from row `place` on; other rows are zeros.
// What follows the last step in memory is another panel, or nothing.
template <class Kind>
const char* right_tiles(const char* from, int64_t place, int64_t steps, char* to) {
  constexpr bool AS_IT_IS = !Kind::IS_CODES && Kind::STEP_BYTES == ROW_OF_TILES;
  if (AS_IT_IS && steps == TILE_ROWS) return from;
  if (steps < TILE_ROWS) std::memset(to, 0, TILE_ROWS * ROW_OF_TILES);
  char* at = to + place * ROW_OF_TILES;
  for (int64_t step = 0; step < steps; step++, from += Kind::STEP_BYTES)
    for (int v = 0; v < VECTORS; v++, at += sizeof(Words)) store(at, Kind::read(from, v));
  return to;
}

// sums [rows][pitch] (+)= left * right, in tiles that are shaped for the rows. The left operand
// begins at step 0, and has zeros behind the last; the right one begins at `first`.
template <class Kind>
void multiply_in_tiles(const LeftTiles& left, const char* right, int64_t first, int64_t steps,
                       float* sums, int64_t pitch, bool fresh, Ahead ahead,
                       GroupScaling scaling = {}) {
  alignas(64) char tile[TILE_ROWS * ROW_OF_TILES];
  alignas(64) float parts[MOST_TILED_ROWS * PANEL];
  const bool both = left.rows > TILE_ROWS;
  Groups groups{steps, fresh, scaling};
  do {
    const Group group = groups.first();
    begin_sums<SUM00, SUM01>(sums, pitch, !group.goes_on);
    if (both) begin_sums<SUM10, SUM11>(sums + TILE_ROWS * pitch, pitch, !group.goes_on);
    for (const int64_t end = first + group.steps; first < end;) {
      const int64_t place = first % TILE_ROWS, count = std::min(TILE_ROWS - place, end - first);
      for (int64_t at = 0; ahead.at && at < count * ahead.bytes; at += 64) prefetch(ahead.at + at);
      ahead.at += ahead.at ? count * ahead.bytes : 0;
      const char* both_columns = right_tiles<Kind>(right, place, count, tile);
      load_tile<RIGHT0>(both_columns, ROW_OF_TILES);
      load_tile<RIGHT1>(both_columns + TILE_BYTES, ROW_OF_TILES);
      const uint32_t* rows = left.data + first / TILE_ROWS * left.next;
      add_tiles<Kind, SUM00, SUM01, LEFT0>(rows, left.pitch);
      if (both) add_tiles<Kind, SUM10, SUM11, LEFT1>(rows + TILE_ROWS * left.pitch, left.pitch);
      right += count * Kind::STEP_BYTES;
      first += count;
    }
    float* to = group.scales ? parts : sums;
    const int64_t step = group.scales ? PANEL : pitch;
    end_sums<SUM00, SUM01>(to, step);
    if (both) end_sums<SUM10, SUM11>(to + TILE_ROWS * step, step);
    if (!group.scales) return;
    const auto part = [&](int r, int v) { return load<Floats>(parts + r * PANEL + v * LANES); };
    add_scaled(left.rows, part, group, sums);
  } while (groups.drop_first());
}

}  // namespace jengine
