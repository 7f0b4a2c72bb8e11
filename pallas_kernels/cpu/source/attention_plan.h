// Divides the queries and keys of a call into units of work.
#pragma once

#include <vector>

#include "attention.h"

namespace jengine {

// The keys that a tile sees, by position, and where its partial results begin.
struct TileSpan {
  int64_t from = 0, to = 0;
  int64_t first_partial = 0;

  int64_t first_segment() const { return from / SEGMENT; }
  int64_t segments() const { return to > from ? (to - 1) / SEGMENT - first_segment() + 1 : 0; }
};

// Keys of one segment, and the tiles that find them in the same blocks: the tiles of one prompt, or
// of rows that share a prefix. They read the keys once.
struct Unit {
  int64_t segment, from, to;
  std::vector<int32_t> tiles;
  std::vector<int32_t> blocks;  // of the segment's pages; -1: no tile of the unit reads it

  int64_t queries = 0;  // tokens
};

struct AttentionPlan {
  std::vector<TileSpan> spans;  // per tile
  std::vector<Unit> units;      // most work first
  int64_t partials;             // of a tile and a segment, where a tile has several

  explicit AttentionPlan(const Attention& call);
};

}  // namespace jengine
