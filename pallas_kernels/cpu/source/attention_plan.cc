#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>

namespace jengine {

// Query rows of a unit, heads of a group included: enough to make up for bringing keys into order,
// few enough to keep them in the second-level cache.
constexpr int64_t MOST_ROWS_OF_UNIT = 192;
constexpr int32_t NONE = -1;

namespace {

TileSpan span_of(const Attention& call, int64_t tile) {
  int64_t low = INT64_MAX, high = -1;
  TileSpan span;
  for (int64_t i = tile * call.tile(); i < (tile + 1) * call.tile(); i++) {
    const int64_t position = call.positions[i];
    if (position < 0) continue;
    low = std::min(low, position);
    high = std::max(high, position);
    span.queries++;
  }
  if (high < 0) return span;
  if (call.starts[tile] < 0 || call.starts[tile] % call.cache.block_size)
    throw std::out_of_range("a block table must start at a multiple of the block size");
  span.from = std::max<int64_t>(call.starts[tile], call.first_key(low));
  span.to = call.end_of_keys(tile, high);
  return span;
}

}  // namespace

// Groups the tiles of one segment into units.
class Grouping {
 public:
  Grouping(const Attention& call, int64_t segment, AttentionPlan& plan)
      : call_(call), size_(call.cache.block_size), segment_(segment),
        first_page_(segment * SEGMENT / size_), plan_(plan) {
    size_t slots = 4;
    while (slots < 2 * (size_t)call.tiles) slots *= 2;
    plan.by_block_.assign(slots, {NONE, NONE});
  }

  void add(int64_t tile) {
    const TileSpan& span = plan_.spans[tile];
    const int64_t from = std::max(span.from, segment_ * SEGMENT);
    const int64_t to = std::min(span.to, (segment_ + 1) * SEGMENT);
    AttentionPlan::ByBlock& found = slot_of(block(tile, from / size_));
    if (found.unit != NONE && joins(plan_.units_[found.unit], tile, from, to, span.queries)) return;
    found.unit = (int32_t)plan_.units_.size();
    const int32_t listed = list(tile);
    plan_.units_.push_back(
        {segment_, from, to, span.queries, (int64_t)plan_.blocks_.size(), listed, listed});
    plan_.blocks_.resize(plan_.blocks_.size() + SEGMENT / size_ + 2, NONE);
    fill(plan_.units_.back(), tile, from, to);
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
  AttentionPlan::ByBlock& slot_of(int32_t block) {
    const size_t mask = plan_.by_block_.size() - 1;
    size_t at = block * size_t{0x9e3779b97f4a7c15} >> 32 & mask;
    while (plan_.by_block_[at].block != NONE && plan_.by_block_[at].block != block)
      at = (at + 1) & mask;
    plan_.by_block_[at].block = block;
    return plan_.by_block_[at];
  }
  int32_t list(int64_t tile) {
    plan_.tiles_.push_back({(int32_t)tile, NONE});
    return (int32_t)plan_.tiles_.size() - 1;
  }

  // Adds a tile that reads the very blocks of the unit, as far as both read a page.
  bool joins(Unit& unit, int64_t tile, int64_t from, int64_t to, int64_t queries) {
    const bool overlaps = from < unit.to && to > unit.from;
    if (!overlaps || (unit.queries + queries) * call_.group() > MOST_ROWS_OF_UNIT) return false;
    for (int64_t page = from / size_; page * size_ < to; page++) {
      const int32_t known = plan_.blocks_[unit.blocks + page - first_page_];
      if (known != NONE && known != block(tile, page)) return false;
    }
    fill(unit, tile, from, to);
    const int32_t listed = list(tile);
    plan_.tiles_[unit.last_tile].next = listed;
    unit.last_tile = listed;
    unit.queries += queries;
    unit.from = std::min(unit.from, from);
    unit.to = std::max(unit.to, to);
    return true;
  }
  void fill(const Unit& unit, int64_t tile, int64_t from, int64_t to) {
    for (int64_t page = from / size_; page * size_ < to; page++)
      plan_.blocks_[unit.blocks + page - first_page_] = block(tile, page);
  }

  const Attention& call_;
  const int64_t size_, segment_, first_page_;
  AttentionPlan& plan_;
};

void AttentionPlan::measure(const Attention& call) {
  spans.clear();
  partials = 0;
  for (int64_t tile = 0; tile < call.tiles; tile++) {
    TileSpan span = span_of(call, tile);
    if (span.segments() > 1) {
      span.first_partial = partials;
      partials += span.segments();
    }
    spans.push_back(span);
  }
}

void AttentionPlan::make(const Attention& call) {
  measure(call);
  units_.clear();
  tiles_.clear();
  blocks_.clear();
  int64_t first = INT64_MAX, last = 0;
  for (const TileSpan& span : spans) {
    if (span.segments() == 0) continue;
    first = std::min(first, span.first_segment());
    last = std::max(last, span.first_segment() + span.segments());
  }
  for (int64_t segment = first; segment < last; segment++) {
    Grouping grouping(call, segment, *this);
    for (int64_t tile = 0; tile < call.tiles; tile++) {
      const TileSpan& span = spans[tile];
      if (span.from < (segment + 1) * SEGMENT && span.to > segment * SEGMENT) grouping.add(tile);
    }
  }
  order_.clear();
  for (const Unit& unit : units_)
    order_.push_back({(unit.to - unit.from) * unit.queries, (int32_t)order_.size()});
  std::sort(order_.begin(), order_.end());
}

}  // namespace jengine
