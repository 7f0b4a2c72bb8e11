#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

namespace jengine {
namespace {

// Query rows of a unit, heads of a group included: enough to make up for bringing keys into order,
// few enough to keep them in the second-level cache.
constexpr int64_t MOST_ROWS_OF_UNIT = 192;

TileSpan span_of(const Attention& call, int64_t tile) {
  int64_t low = INT64_MAX, high = -1;
  for (int64_t i = tile * call.tile(); i < (tile + 1) * call.tile(); i++) {
    const int64_t position = call.positions[i];
    if (position < 0) continue;
    low = std::min(low, position);
    high = std::max(high, position);
  }
  TileSpan span;
  if (high < 0) return span;
  if (call.starts[tile] < 0 || call.starts[tile] % call.cache.block_size)
    throw std::out_of_range("a block table must start at a multiple of the block size");
  span.from = std::max<int64_t>(call.starts[tile], call.first_key(low));
  span.to = high + 1;
  return span;
}

int64_t queries_of(const Attention& call, int64_t tile) {
  const int32_t* first = call.positions + tile * call.tile();
  return std::count_if(first, first + call.tile(), [](int32_t p) { return p >= 0; });
}

// Groups tiles of one segment into units.
class Grouping {
 public:
  Grouping(const Attention& call, int64_t segment, std::vector<Unit>& units)
      : call_(call), segment_(segment), size_(call.cache.block_size), units_(units) {}

  void add(int64_t tile, const TileSpan& span) {
    const int64_t from = std::max(span.from, segment_ * SEGMENT);
    const int64_t to = std::min(span.to, (segment_ + 1) * SEGMENT);
    const int64_t queries = queries_of(call_, tile);
    auto [found, is_new] = by_block_.try_emplace(block(tile, from / size_), units_.size());
    if (!is_new && joins(units_[found->second], tile, from, to, queries)) return;
    found->second = units_.size();
    Unit unit{segment_, from, to, {(int32_t)tile}, {}, queries};
    unit.blocks.assign(SEGMENT / size_ + 2, -1);
    fill(unit, tile, from, to);
    units_.push_back(std::move(unit));
  }

 private:
  int32_t block(int64_t tile, int64_t page) const {
    const int64_t column = page - call_.starts[tile] / size_;
    if (column >= call_.pages) throw std::out_of_range("a position is beyond its block table");
    const int32_t found = call_.tables[tile * call_.pages + column];
    if (found < 0 || found >= call_.cache.blocks)
      throw std::out_of_range("a block table names a block that the cache does not have");
    return found;
  }
  int64_t first_page() const { return segment_ * SEGMENT / size_; }

  // Adds a tile that reads the very blocks of the unit, as far as both read a page.
  bool joins(Unit& unit, int64_t tile, int64_t from, int64_t to, int64_t queries) {
    const bool overlaps = from < unit.to && to > unit.from;
    if (!overlaps || (unit.queries + queries) * call_.group() > MOST_ROWS_OF_UNIT) return false;
    for (int64_t page = from / size_; page * size_ < to; page++) {
      const int32_t known = unit.blocks[page - first_page()];
      if (known != -1 && known != block(tile, page)) return false;
    }
    fill(unit, tile, from, to);
    unit.tiles.push_back((int32_t)tile);
    unit.queries += queries;
    unit.from = std::min(unit.from, from);
    unit.to = std::max(unit.to, to);
    return true;
  }
  void fill(Unit& unit, int64_t tile, int64_t from, int64_t to) {
    for (int64_t page = from / size_; page * size_ < to; page++)
      unit.blocks[page - first_page()] = block(tile, page);
  }

  const Attention& call_;
  const int64_t segment_, size_;
  std::vector<Unit>& units_;
  std::unordered_map<int32_t, size_t> by_block_;  // the newest unit that begins with a block
};

}  // namespace

AttentionPlan::AttentionPlan(const Attention& call) : partials(0) {
  int64_t first = INT64_MAX, last = 0;
  for (int64_t tile = 0; tile < call.tiles; tile++) {
    TileSpan span = span_of(call, tile);
    if (span.segments() > 1) {
      span.first_partial = partials;
      partials += span.segments();
    }
    if (span.segments()) {
      first = std::min(first, span.first_segment());
      last = std::max(last, span.first_segment() + span.segments());
    }
    spans.push_back(span);
  }
  for (int64_t segment = first; segment < last; segment++) {
    Grouping grouping(call, segment, units);
    for (int64_t tile = 0; tile < call.tiles; tile++) {
      const TileSpan& span = spans[tile];
      if (span.from < (segment + 1) * SEGMENT && span.to > segment * SEGMENT)
        grouping.add(tile, span);
    }
  }
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return (a.to - a.from) * a.queries > (b.to - b.from) * b.queries;
  });
}

}  // namespace jengine
