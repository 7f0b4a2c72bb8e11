// Divides the queries and keys of a call into units of work.
#pragma once

#include <vector>

#include "attention.h"

namespace jengine {

// The keys that a tile sees, by position, and where its partial results begin.
struct TileSpan {
  int64_t from = 0, to = 0;
  int64_t queries = 0;  // tokens
  int64_t first_partial = 0;

  int64_t first_segment() const { return from / SEGMENT; }
  int64_t segments() const { return to > from ? (to - 1) / SEGMENT - first_segment() + 1 : 0; }
};

// Keys of one segment, and the tiles that find them in the same blocks: the tiles of one prompt, or
// of rows that share a prefix. They read the keys once.
struct Unit {
  int64_t segment, from, to;
  int64_t queries;                // tokens
  int64_t blocks;                 // where those of the segment's pages begin in the plan
  int32_t first_tile, last_tile;  // in the plan's list
};

// Keeps its memory from call to call: a plan is made for every layer.
class AttentionPlan {
 public:
  std::vector<TileSpan> spans;  // per tile
  int64_t partials = 0;         // of a tile and a segment, where a tile has several

  void make(const Attention& call);
  // Units with most work first.
  int64_t size() const { return (int64_t)order_.size(); }
  const Unit& unit(int64_t index) const { return units_[order_[index].unit]; }
  // The blocks of the pages from that of position `from` on.
  const int32_t* blocks_of(const Unit& unit, int64_t block_size) const {
    const int64_t first_page = unit.segment * SEGMENT / block_size;
    return blocks_.data() + unit.blocks + unit.from / block_size - first_page;
  }
  template <class Visit>
  void for_each_tile(const Unit& unit, const Visit& visit) const {
    for (int32_t i = unit.first_tile; i >= 0; i = tiles_[i].next) visit(tiles_[i].tile);
  }

 private:
  struct ListedTile {
    int32_t tile, next;
  };
  struct Ranked {
    int64_t work;
    int32_t unit;
    bool operator<(const Ranked& other) const {
      return work != other.work ? work > other.work : unit < other.unit;
    }
  };
  struct ByBlock {
    int32_t block, unit;
  };
  friend class Grouping;

  void measure(const Attention& call);

  std::vector<Unit> units_;
  std::vector<ListedTile> tiles_;
  std::vector<int32_t> blocks_;
  std::vector<Ranked> order_;
  std::vector<ByBlock> by_block_;  // open hash table: the newest unit that begins with a block
};

}  // namespace jengine
