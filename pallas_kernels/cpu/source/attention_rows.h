// The query rows of a unit of work, and where their results go.
#pragma once

#include <atomic>

#include "attention_keys.h"
#include "attention_plan.h"
#include "attention_softmax.h"

namespace jengine {

// A token's query for one head of a KV head's group. It sees the keys [low, high) of the unit.
struct QueryRow {
  int64_t token, member;
  int64_t row;  // among its tile's rows
  int64_t low, high;
  int32_t tile;
};

// What the rows of a block see: any of them the keys [low, high), all of them [most_low, least_high).
struct BlockSight {
  int64_t low = INT64_MAX, high = 0, most_low = 0, least_high = INT64_MAX;

  void add(const QueryRow& row) {
    low = std::min(low, row.low);
    high = std::max(high, row.high);
    most_low = std::max(most_low, row.low);
    least_high = std::min(least_high, row.high);
  }
};

// The first number of a row's vector among all queries.
inline int64_t place_of(const Attention& call, const QueryRow& row, int64_t head) {
  return (row.token * call.heads + head * call.group() + row.member) * call.cache.dim;
}
inline void fetch_query(const Attention& call, const QueryRow& row, int64_t head) {
  const int64_t number = call.q_is_bfloat16 ? 2 : 4, at = place_of(call, row, head) * number;
  for (int64_t byte = 0; byte < call.cache.dim * number; byte += 64)
    prefetch_line(call.q + at + byte);
}
// A query's vector as words, with zeros up to `count`, a multiple of a run.
template <class Kind>
inline void store_query(const Attention& call, const QueryRow& row, int64_t head, uint32_t* words,
                        int64_t count) {
  const int64_t dim = call.cache.dim, at = place_of(call, row, head);
  std::memset(words + count - RUN, 0, RUN * sizeof(uint32_t));
  for (int64_t d = 0; d < dim; d += LANES) {
    const Floats values =
        call.q_is_bfloat16 ? from_bfloat16(load_some<Halves>(call.q + (at + d) * 2, dim - d))
                           : load_some<Floats>(call.q + (at + d) * 4, dim - d);
    if (Kind::DEPTH == 2) {
      store_some(words + d / 2, to_bfloat16(values), dim - d);
    } else {
      store_some(words + d, values, dim - d);
    }
  }
}

// Writes what a row has mixed, as the result of a token's query for one head.
inline void write_row(const Attention& call, int64_t token, int64_t head, const Running& running,
                      int64_t row) {
  float sum = total(load<Floats>(running.sums + row * LANES)), most = running.reference[row];
  float factor = 1.0f;
  if (call.sinks) {
    const float sink = call.sinks[head] * LOG2_E, larger = std::max(most, sink);
    factor = exp2(most - larger);
    sum = sum * factor + exp2(sink - larger);
    most = larger;
  }
  factor = sum == 0 ? 0.0f : factor / sum;  // NaN stays NaN
  const int64_t dim = call.cache.dim, at = token * call.heads + head;
  call.lse[at] = most * LN_2 + std::log(sum);
  for (int64_t d = 0; d < dim; d += PANEL) {
    Floats mixed[VECTORS];
    for (int v = 0; v < VECTORS; v++)
      mixed[v] = load<Floats>(running.mixed + row * running.width + d + v * LANES) * factor;
    if (call.cache.number == Number::BFLOAT16) in_order(mixed);
    for (int64_t v = 0; v < VECTORS && d + v * LANES < dim; v++) {
      const int64_t first = d + v * LANES;
      if (call.out_is_bfloat16) {
        store_some(call.out + (at * dim + first) * 2, to_bfloat16(mixed[v]), dim - first);
      } else {
        store_some(call.out + (at * dim + first) * 4, mixed[v], dim - first);
      }
    }
  }
}

// Partial results of tiles whose keys are in several segments. Who leaves a tile's last partial
// result merges them all, in the order of segments.
class Partials {
 public:
  Partials(const Attention& call, const AttentionPlan& plan)
      : call_(call), plan_(plan), rows_(call.tile() * call.group()),
        width_(padded(call.cache.dim)) {
    if (plan.partials == 0) return;
    const int64_t kv_heads = call.cache.kv_heads, floats = plan.partials * kv_heads * one();
    Arena memory(call_scratch().take(Arena::bytes<float>(floats) +
                                     Arena::bytes<Count>(call.tiles * kv_heads)));
    memory_ = memory.array<float>(floats);
    missing_ = memory.array<Count>(call.tiles * kv_heads);
    for (int64_t i = 0; i < call.tiles * kv_heads; i++)
      new (missing_ + i) Count((int32_t)plan.spans[i / kv_heads].segments());
  }

  Running at(int64_t tile, int64_t segment, int64_t head) const {
    const TileSpan& span = plan_.spans[tile];
    const int64_t index = span.first_partial + segment - span.first_segment();
    return Running(memory_ + (index * call_.cache.kv_heads + head) * one(), rows_, width_);
  }
  void finish(int64_t tile, int64_t head) const {
    if (missing_[tile * call_.cache.kv_heads + head].fetch_sub(1, std::memory_order_acq_rel) == 1)
      merge(tile, head);
  }

 private:
  using Count = std::atomic<int32_t>;
  size_t one() const { return Running::floats(rows_, width_); }

  void merge(int64_t tile, int64_t head) const {
    const TileSpan& span = plan_.spans[tile];
    const int64_t group = call_.group();
    Running whole = at(tile, span.first_segment(), head);
    for (int64_t row = 0; row < rows_; row++) {
      const int64_t token = tile * call_.tile() + row / group;
      if (call_.positions[token] < 0) continue;
      for (int64_t s = 1; s < span.segments(); s++)
        whole.merge(row, at(tile, span.first_segment() + s, head), row);
      write_row(call_, token, head * group + row % group, whole, row);
    }
  }

  const Attention& call_;
  const AttentionPlan& plan_;
  const int64_t rows_, width_;
  float* memory_ = nullptr;
  Count* missing_ = nullptr;
};

}  // namespace jengine
