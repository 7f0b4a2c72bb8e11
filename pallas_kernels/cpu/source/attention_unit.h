// The work of one task: the queries of a unit and one KV head over the unit's keys.
#pragma once

#include "attention_keys.h"
#include "attention_plan.h"
#include "attention_softmax.h"

namespace jengine {

// A query row of a unit: one head of one token.
struct QueryRow {
  int64_t token, head;
  int64_t position;
  int64_t partial_row;  // among its tile's rows
  int32_t tile;
};

inline void write_row(const Attention& call, const QueryRow& query, const Running& running,
                      int64_t row) {
  float sum = running.sum[row], most = running.largest[row], factor = 1.0f;
  if (call.sinks) {
    const float sink = call.sinks[query.head], larger = std::max(most, sink);
    factor = exp(most - larger);
    sum = sum * factor + exp(sink - larger);
    most = larger;
  }
  factor = sum == 0 ? 0.0f : factor / sum;  // NaN stays NaN
  const int64_t dim = call.cache.dim, at = query.token * call.heads + query.head;
  call.lse[at] = most + std::log(sum);
  const float* mixed = running.mixed + row * running.width;
  for (int64_t d = 0; d < dim; d += LANES) {
    const Floats values = load<Floats>(mixed + d) * factor;
    if (call.out_is_bfloat16) {
      store_some(call.out + (at * dim + d) * 2, to_bfloat16(values), dim - d);
    } else {
      store_some(call.out + (at * dim + d) * 4, values, dim - d);
    }
  }
}

// Partial results of tiles whose keys are in several segments.
class Partials {
 public:
  Partials(const Attention& call, const AttentionPlan& plan)
      : rows_(call.tile() * call.group()), kv_heads_(call.cache.kv_heads),
        width_(padded(call.cache.dim)), plan_(plan),
        memory_(reinterpret_cast<float*>(
            call_scratch().take(plan.partials * kv_heads_ * floats() * sizeof(float)))) {}

  Running at(int64_t tile, int64_t segment, int64_t head) const {
    const TileSpan& span = plan_.spans[tile];
    const int64_t index = span.first_partial + segment - span.first_segment();
    return Running(memory_ + (index * kv_heads_ + head) * floats(), rows_, width_);
  }

 private:
  size_t floats() const { return Running::floats(rows_, width_); }
  const int64_t rows_, kv_heads_, width_;
  const AttentionPlan& plan_;
  float* memory_;
};

// A task: the queries of a unit and one KV head over the unit's keys.
template <class Kind>
class UnitTask {
 public:
  using Weight = std::conditional_t<Kind::DEPTH == 2, uint16_t, float>;
  static constexpr int WEIGHT_WORDS = CHUNK / Kind::DEPTH;

  UnitTask(const Attention& call, const AttentionPlan& plan, const Unit& unit)
      : call_(call), plan_(plan), unit_(unit), blocks_(unit.queries * call.group()),
        steps_(call.cache.dim / Kind::DEPTH), width_(padded(call.cache.dim)) {
    find_tokens();
    rows_.reserve(blocks_.rows);
  }

  void run(int64_t head, const Partials& partials) {
    const size_t num_running = Running::floats(blocks_.rows, width_);
    Arena memory(task_scratch().take(
        Arena::bytes<uint32_t>(blocks_.rows * steps_) + Arena::bytes<float>(num_running) +
        Arena::bytes<uint32_t>(CHUNK * steps_) + Arena::bytes<uint32_t>(WEIGHT_WORDS * width_) +
        Arena::bytes<float>(MOST_ROWS * CHUNK) + Arena::bytes<Weight>(MOST_ROWS * CHUNK) +
        Arena::bytes<float>(num_staged())));
    query_ = memory.array<uint32_t>(blocks_.rows * steps_);
    Running running(memory.array<float>(num_running), blocks_.rows, width_);
    keys_ = memory.array<uint32_t>(CHUNK * steps_);
    values_ = memory.array<uint32_t>(WEIGHT_WORDS * width_);
    scores_ = memory.array<float>(MOST_ROWS * CHUNK);
    weights_ = memory.array<Weight>(MOST_ROWS * CHUNK);
    staged_ = memory.array<float>(num_staged());
    take_queries(head);
    running.clear(blocks_.rows);
    for (int64_t first = unit_.from / CHUNK * CHUNK; first < unit_.to; first += CHUNK)
      add_chunk(first, head, running);
    for (int64_t row = 0; row < blocks_.rows; row++) leave(row, head, running, partials);
  }

 private:
  // Keys and values of a chunk that the micro kernel cannot read as they are.
  size_t num_staged() const {
    return call_.cache.number == Number::FLOAT16 ? 2 * CHUNK * call_.cache.dim : 0;
  }

  // Byte offsets of the unit's tokens in a plane.
  void find_tokens() {
    const int64_t size = call_.cache.block_size, begin = unit_.segment * SEGMENT / size;
    for (int64_t position = unit_.from; position < unit_.to; position++) {
      const int64_t block = unit_.blocks[position / size - begin];
      const int64_t slot = block * size + position % size;
      offsets_[position - unit_.from] = slot * call_.cache.token_bytes();
    }
  }

  void take_queries(int64_t head) {
    rows_.clear();
    const int64_t tile_size = call_.tile(), group = call_.group();
    for (int32_t tile : unit_.tiles)
      for (int64_t i = 0; i < tile_size; i++) {
        const int64_t token = tile * tile_size + i, position = call_.positions[token];
        for (int64_t g = 0; position >= 0 && g < group; g++)
          rows_.push_back({token, head * group + g, position, i * group + g, tile});
      }
    least_high_ = unit_.to;
    most_low_ = unit_.from;
    for (const QueryRow& row : rows_) {
      least_high_ = std::min(least_high_, row.position + 1);
      most_low_ = std::max(most_low_, low_of(row));
    }
    for (int64_t block = 0; block < blocks_.count; block++)
      for (int r = 0; r < blocks_.in(block); r++)
        pack_query(rows_[blocks_.begin(block) + r],
                   query_ + blocks_.begin(block) * steps_ + r, blocks_.in(block));
  }

  // Writes the words of a query's vector, `pitch` apart.
  void pack_query(const QueryRow& row, uint32_t* to, int64_t pitch) {
    const int64_t dim = call_.cache.dim, at = (row.token * call_.heads + row.head) * dim;
    constexpr int64_t most = LANES / Kind::DEPTH;  // words of a vector
    for (int64_t d = 0; d < dim; d += LANES) {
      const Floats values =
          call_.q_is_bfloat16 ? from_bfloat16(load_some<Halves>(call_.q + (at + d) * 2, dim - d))
                              : load_some<Floats>(call_.q + (at + d) * 4, dim - d);
      uint32_t words[LANES];
      if (Kind::DEPTH == 2) {
        store(words, to_bfloat16(values));
      } else {
        store(words, values);
      }
      const int64_t count = std::min<int64_t>(most, (dim - d) / Kind::DEPTH);
      for (int64_t w = 0; w < count; w++, to += pitch) *to = words[w];
    }
  }

  ChunkRows rows_of_chunk(int64_t first, int64_t head) const {
    ChunkRows rows;
    const int64_t in_token = head * call_.cache.head_bytes();
    for (int64_t i = 0; i < CHUNK; i++) {
      const int64_t position = first + i;
      rows.keys[i] = rows.values[i] = nullptr;
      if (position < unit_.from || position >= unit_.to) continue;
      const int64_t offset = offsets_[position - unit_.from] + in_token;
      rows.keys[i] = call_.cache.keys + offset;
      rows.values[i] = call_.cache.values + offset;
      if (position + CHUNK < unit_.to)
        prefetch_token(offsets_[position + CHUNK - unit_.from] + in_token);
    }
    return rows;
  }
  void prefetch_token(int64_t offset) const {
    for (int64_t byte = 0; byte < call_.cache.head_bytes(); byte += 64) {
      prefetch(call_.cache.keys + offset + byte);
      prefetch(call_.cache.values + offset + byte);
    }
  }

  // The first key of the unit that a row sees.
  int64_t low_of(const QueryRow& row) const {
    const int64_t start = call_.starts[row.tile];
    return std::max({unit_.from, start, call_.first_key(row.position)});
  }
  Sight sight_of(const QueryRow& row, int64_t first) const {
    const int64_t low = low_of(row), high = std::min(unit_.to, row.position + 1);
    return {std::max<int64_t>(low - first, 0), std::min(high - first, CHUNK)};
  }

  void add_chunk(int64_t first, int64_t head, Running& running) {
    ChunkRows rows = rows_of_chunk(first, head);
    if (num_staged()) stage_as_float32(rows, call_.cache.dim, staged_);
    const Number staged = num_staged() ? Number::FLOAT32 : call_.cache.number;
    const uint64_t left_out =
        hides_keys(first) ? leave_out_nonfinite(rows, call_.cache.dim, staged) : 0;
    order_keys<Kind>(rows, steps_, keys_);
    order_values<Kind>(rows, call_.cache.dim, values_);
    for (int64_t block = 0; block < blocks_.count; block++)
      add_block(first, block, left_out, running);
  }

  // Whether some row does not see all of a chunk's keys.
  bool hides_keys(int64_t first) const {
    const int64_t from = std::max(first, unit_.from), to = std::min(first + CHUNK, unit_.to);
    return least_high_ < to || most_low_ > from;
  }

  void add_block(int64_t first, int64_t block, uint64_t left_out, Running& running) {
    const int64_t row0 = blocks_.begin(block);
    const int rows = blocks_.in(block);
    Sight sights[MOST_ROWS];
    bool any = false;
    for (int r = 0; r < rows; r++) {
      sights[r] = sight_of(rows_[row0 + r], first);
      any |= !sights[r].none();
    }
    if (!any) return;
    for (int64_t p = 0; p < CHUNK / PANEL; p++)
      multiply_for<Kind>(rows)(query_ + row0 * steps_, as_bytes(keys_ + p * steps_ * PANEL), steps_,
                               scores_ + p * PANEL, CHUNK, true, {});
    for (int r = 0; r < rows; r++) {
      weigh(call_, scores_ + r * CHUNK, sights[r], running, row0 + r, weights_ + r * CHUNK);
      if (sights[r].any_of(left_out))
        running.sum[row0 + r] = std::numeric_limits<float>::quiet_NaN();
    }
    const Multiply mix = multiply_for<Kind, WEIGHT_WORDS>(rows);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(weights_);
    for (int64_t p = 0; p < width_ / PANEL; p++)
      mix(words, as_bytes(values_ + p * WEIGHT_WORDS * PANEL), WEIGHT_WORDS,
          running.mixed + row0 * width_ + p * PANEL, width_, false, {});
  }

  void leave(int64_t row, int64_t head, const Running& running, const Partials& partials) const {
    const QueryRow& query = rows_[row];
    if (plan_.spans[query.tile].segments() == 1) {
      write_row(call_, query, running, row);
    } else {
      partials.at(query.tile, unit_.segment, head).copy(query.partial_row, running, row);
    }
  }
  static const char* as_bytes(const uint32_t* words) {
    return reinterpret_cast<const char*>(words);
  }

  const Attention& call_;
  const AttentionPlan& plan_;
  const Unit& unit_;
  const RowBlocks blocks_;
  const int64_t steps_, width_;
  std::vector<QueryRow> rows_;
  int64_t least_high_, most_low_;  // keys between them are seen by all rows
  int64_t offsets_[SEGMENT];
  uint32_t *query_, *keys_, *values_;
  float *scores_, *staged_;
  Weight* weights_;
};

}  // namespace jengine
