// The work of one task: the queries of a unit and some KV heads over the unit's keys.
#pragma once

#include "attention_few.h"
#include "attention_rows.h"

namespace jengine {

// The KV heads [first, last).
struct Heads {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

template <class Kind>
class UnitTask {
 public:
  using Weight = std::conditional_t<Kind::DEPTH == 2, uint16_t, float>;
  static constexpr int64_t FETCHED_QUERIES = 12;         // rows ahead of the one that is read
  static constexpr int64_t STEPS = CHUNK / Kind::DEPTH;  // of a chunk's values

  // `next` is a unit that this thread may work on next, or null.
  UnitTask(const Attention& call, const AttentionPlan& plan, const Unit& unit, Heads heads,
           const Unit* next)
      : call_(call), plan_(plan), unit_(unit), next_(next), heads_(heads), scaling_(call),
        blocks_(unit.queries * call.group(), MOST_ROWS_OF<Kind>), words_(call.cache.dim / Kind::DEPTH),
        query_words_(up_to_run(words_)), width_(padded(call.cache.dim)) {}

  void run(const Partials& partials) {
    take_memory();
    find_tokens();
    list_rows();
    for (int64_t head = heads_.first; head < heads_.last; head++) {
      take_queries(head);
      running_of(head).clear(blocks_.rows);
    }
    for (int64_t chunk = 0; chunk < chunks(); chunk++)
      for (int64_t head = heads_.first; head < heads_.last; head++) add_chunk(chunk, head);
    for (int64_t head = heads_.first; head < heads_.last; head++) leave(head, partials);
  }

 private:
  bool is_staged() const {
    const Number number = call_.cache.number;
    return number == Number::FLOAT16 || is_code(number);
  }
  // Tiles take few rows as they take many, so that their bits are the same.
  bool is_few() const { return !IN_TILES<Kind> && blocks_.rows <= MOST_FEW; }
  static int64_t begin(const Unit& unit) { return unit.from / CHUNK * CHUNK; }
  int64_t begin() const { return begin(unit_); }
  int64_t chunks() const { return (unit_.to - begin() + CHUNK - 1) / CHUNK; }

  void take_memory() {
    const int64_t rows = blocks_.rows, staged = 2 * CHUNK * query_words_ * Kind::DEPTH;
    const int64_t packed = is_few() ? 0 : CHUNK * words_;
    const int64_t ordered = is_few() ? 0 : STEPS * width_, most = std::max(MOST_ROWS_OF<Kind>, MOST_FEW);
    const size_t queries = rows * query_words_ * heads_.count();
    const size_t running = Running::floats(rows, width_) * heads_.count();
    Arena memory(task_scratch().take(
        Arena::bytes<uint32_t>(queries) + Arena::bytes<float>(running) +
        Arena::bytes<QueryRow>(rows) + Arena::bytes<BlockSight>(blocks_.count) +
        Arena::bytes<uint32_t>(packed) + Arena::bytes<uint32_t>(ordered) + Arena::bytes<float>(most * CHUNK) +
        Arena::bytes<Weight>(most * CHUNK) + Arena::bytes<float>(staged)));
    query_ = memory.array<uint32_t>(queries);
    running_ = memory.array<float>(running);
    rows_ = memory.array<QueryRow>(rows);
    sights_ = memory.array<BlockSight>(blocks_.count);
    keys_ = memory.array<uint32_t>(packed);
    values_ = memory.array<uint32_t>(ordered);
    scores_ = memory.array<float>(most * CHUNK);
    weights_ = memory.array<Weight>(most * CHUNK);
    staged_ = memory.array<float>(staged);
  }
  uint32_t* query_of(int64_t head) const {
    return query_ + (head - heads_.first) * blocks_.rows * query_words_;
  }
  Running running_of(int64_t head) const {
    const int64_t one = Running::floats(blocks_.rows, width_);
    return Running(running_ + (head - heads_.first) * one, blocks_.rows, width_);
  }

  // Byte offsets in a plane of the tokens of all chunks, and of the first of the unit that may be
  // this thread's next; and of the scales of the first.
  void find_tokens() {
    const int64_t bytes = call_.cache.token_bytes();
    find_tokens(unit_, unit_.to, 0, bytes, offsets_);
    if (next_)
      find_tokens(*next_, std::min(next_->to, begin(*next_) + CHUNK), 0, bytes, end_of_tokens());
    if (is_code(call_.cache.number))
      find_tokens(unit_, unit_.to, call_.cache.scales(), SCALE_BYTES, scale_offsets_);
  }
  int64_t* end_of_tokens() { return offsets_ + chunks() * CHUNK; }
  // In each block the tokens are `bytes` apart, from `in_block` on.
  void find_tokens(const Unit& unit, int64_t last, int64_t in_block, int64_t bytes,
                   int64_t* offsets) const {
    const int64_t size = call_.cache.block_size;
    const int64_t first = unit.from - begin(unit), count = last - begin(unit);
    const int32_t* block = plan_.blocks_of(unit, size);
    int64_t in_page = unit.from % size;
    for (int64_t i = first; i < count; in_page = 0) {
      int64_t offset = *block++ * call_.cache.block_bytes() + in_block + in_page * bytes;
      const int64_t end = std::min(i + size - in_page, count);
      for (; i < end; i++, offset += bytes) offsets[i] = offset;
    }
    std::fill_n(offsets, first, offsets[first]);
    std::fill(offsets + count, offsets + (count + CHUNK - 1) / CHUNK * CHUNK, offsets[count - 1]);
  }

  void list_rows() {
    const int64_t tile_size = call_.tile(), group = call_.group();
    QueryRow* next = rows_;
    plan_.for_each_tile(unit_, [&](int32_t tile) {
      for (int64_t i = 0; i < tile_size; i++) {
        const int64_t token = tile * tile_size + i, position = call_.positions[token];
        if (position < 0) continue;
        const int64_t start = call_.starts[tile];
        const int64_t low = std::max({unit_.from, start, call_.first_key(position)}) - begin();
        const int64_t high = std::min(unit_.to, call_.end_of_keys(tile, position)) - begin();
        for (int64_t g = 0; g < group; g++) *next++ = {token, g, i * group + g, low, high, tile};
      }
    });
    for (int64_t block = 0; block < blocks_.count; block++) {
      sights_[block] = {};
      for (int r = 0; r < blocks_.in(block); r++) {
        sights_[block].add(rows_[blocks_.begin(block) + r]);
        whole_.add(rows_[blocks_.begin(block) + r]);
      }
    }
  }

  void take_queries(int64_t head) {
    uint32_t* query = query_of(head);
    uint32_t* words = reinterpret_cast<uint32_t*>(staged_);  // [rows of a block][query_words_]
    for (int64_t block = 0; block < blocks_.count; block++) {
      const int64_t row0 = blocks_.begin(block);
      const int rows = blocks_.in(block);
      for (int r = 0; r < rows; r++) {
        const int64_t later = std::min(row0 + r + FETCHED_QUERIES, blocks_.rows - 1);
        fetch_query(call_, rows_[later], head);
        store_query<Kind>(call_, rows_[row0 + r], head, words + r * query_words_, query_words_);
      }
      uint32_t* to = query + row0 * query_words_;
      if constexpr (IN_TILES<Kind>) {
        pack_in_tiles(words, rows, query_words_, query_words_, to);
      } else {
        interleave_rows(words, rows, query_words_, query_words_, to);
      }
    }
  }

  // What is fetched of the next chunk while one head of this chunk is worked on.
  Fetching share_of_next(const char* plane, int64_t index, int64_t head) const {
    if (index + 1 == chunks() && !next_) return {};
    const int64_t heads = heads_.count(), share = head - heads_.first;
    const int64_t begin = CHUNK * share / heads, end = CHUNK * (share + 1) / heads;
    return {plane + heads_.first * call_.cache.head_bytes(),
            offsets_ + (index + 1) * CHUNK + begin, end - begin,
            heads * call_.cache.head_bytes()};
  }

  void add_chunk(int64_t index, int64_t head) {
    const int64_t first = index * CHUNK, in_token = head * call_.cache.head_bytes();
    const int64_t *offsets = offsets_ + first, scales = call_.cache.scales_of_head(head);
    HeadChunk chunk{call_.cache.keys + in_token, call_.cache.values + in_token,
                    call_.cache.keys + scales, call_.cache.values + scales,
                    offsets, offsets, scale_offsets_ + first,
                    call_.cache.dim, share_of_next(call_.cache.keys, index, head),
                    share_of_next(call_.cache.values, index, head)};
    int64_t staged_offsets[CHUNK];
    if (is_staged()) stage_as_float32(chunk, call_.cache.number, staged_, staged_offsets);
    left_out_ = 0;
    if (hides_keys(first)) left_out_ = leave_out_nonfinite<Kind>(chunk, staged_, staged_offsets);
    Running running = running_of(head);
#if defined(JENGINE_AVX512)
    if (is_few()) return add_to_few(chunk, first, query_of(head), running);
#endif
    order_keys(chunk, words_, keys_);
    order_values<Kind>(chunk, values_);
    for (int64_t block = 0; block < blocks_.count; block++)
      add_to_block(first, block, query_of(head), running);
  }

  // Whether some row does not see all of a chunk's keys.
  bool hides_keys(int64_t first) const {
    const int64_t from = std::max(first, unit_.from - begin());
    const int64_t to = std::min(first + CHUNK, unit_.to - begin());
    return whole_.least_high < to || whole_.most_low > from;
  }

  // What any row of a block sees of the chunk that begins at `first`.
  Sight sight_of_any(int64_t first, const BlockSight& block) const {
    return {std::max<int64_t>(block.low - first, 0), std::min(block.high - first, CHUNK)};
  }
  void weigh_rows(int64_t first, int64_t block, Running& running) {
    const int64_t row0 = blocks_.begin(block);
    const BlockSight& all = sights_[block];
    const bool sees_all = all.most_low <= first && all.least_high >= first + CHUNK && !left_out_;
    for (int64_t r = 0; r < blocks_.in(block); r++) {
      const QueryRow& row = rows_[row0 + r];
      const Sight sight = sees_all ? Sight{0, CHUNK} : Sight{row.low - first, row.high - first};
      weigh(scaling_, scores_ + r * CHUNK, sight, running, row0 + r, weights_ + r * CHUNK);
      if (!sees_all && sight.any_of(left_out_)) running.sums[(row0 + r) * LANES] = NAN;
    }
  }
  // The steps of a chunk's values that are mixed.
  static int64_t first_step(Sight any) { return any.low / Kind::DEPTH; }
  static int64_t last_step(Sight any) { return (any.high + Kind::DEPTH - 1) / Kind::DEPTH; }
  const uint32_t* weight_words() const { return reinterpret_cast<const uint32_t*>(weights_); }

#if defined(JENGINE_AVX512)
  void add_to_few(HeadChunk& chunk, int64_t first, const uint32_t* query, Running& running) {
    const int rows = (int)blocks_.rows;
    const Sight any = sight_of_any(first, sights_[0]);
    if (any.none()) return;
    const FewKernels& kernels = few_kernels_for<Kind>(rows);
    kernels.score(chunk, query, words_, any.low / RUN * RUN, up_to_run(any.high), scores_);
    weigh_rows(first, 0, running);
    kernels.mix(chunk, weight_words(), first_step(any), last_step(any), running.mixed, width_);
  }
#endif

  void add_to_block(int64_t first, int64_t block, const uint32_t* query, Running& running) {
    const int64_t row0 = blocks_.begin(block);
    const int rows = blocks_.in(block);
    const Sight any = sight_of_any(first, sights_[block]);
    if (any.none()) return;
    if constexpr (IN_TILES<Kind>) {
      tiles_.shape(rows);
      score_in_tiles(any, packed_tiles(query + row0 * query_words_, rows));
      weigh_rows(first, block, running);
      mix_in_tiles(rows, running.mixed + row0 * width_);
    } else {
      add_in_registers(first, block, any, query + row0 * query_words_, running);
    }
  }
  void score_in_tiles(Sight any, LeftTiles query) {
    for (int64_t p = any.low / PANEL; p * PANEL < any.high; p++)
      multiply_in_tiles<Kind>(query, as_bytes(keys_ + p * words_ * PANEL), 0, words_,
                              scores_ + p * PANEL, CHUNK, true, {});
  }
  // All of a chunk: tokens that no row sees weigh nothing.
  void mix_in_tiles(int rows, float* mixed) const {
    for (int64_t p = 0; p < width_ / PANEL; p++)
      multiply_in_tiles<Kind>({weight_words(), rows, STEPS, TILE_WORDS},
                              as_bytes(values_ + p * STEPS * PANEL), 0, STEPS, mixed + p * PANEL,
                              width_, false, {});
  }
  void add_in_registers(int64_t first, int64_t block, Sight any, const uint32_t* query,
                        Running& running) {
    const int64_t row0 = blocks_.begin(block);
    const int rows = blocks_.in(block);
    for (int64_t p = any.low / PANEL; p * PANEL < any.high; p++)
      multiply_for<Kind>(rows)(query, as_bytes(keys_ + p * words_ * PANEL), words_,
                               scores_ + p * PANEL, CHUNK, true, {}, {});
    weigh_rows(first, block, running);
    const Multiply mix = multiply_for<Kind, STEPS>(rows);
    const int64_t from = first_step(any), steps = last_step(any) - from;
    for (int64_t p = 0; p < width_ / PANEL; p++)
      mix(weight_words() + from, as_bytes(values_ + (p * STEPS + from) * PANEL), steps,
          running.mixed + row0 * width_ + p * PANEL, width_, false, {}, {});
  }

  void leave(int64_t head, const Partials& partials) const {
    const Running running = running_of(head);
    for (int64_t row = 0; row < blocks_.rows; row++) {
      const QueryRow& query = rows_[row];
      if (plan_.spans[query.tile].segments() == 1) {
        write_row(call_, query.token, head * call_.group() + query.member, running, row);
      } else {
        partials.at(query.tile, unit_.segment, head).copy(query.row, running, row);
      }
    }
    plan_.for_each_tile(unit_, [&](int32_t tile) {
      if (plan_.spans[tile].segments() > 1) partials.finish(tile, head);
    });
  }
  static const char* as_bytes(const uint32_t* words) {
    return reinterpret_cast<const char*>(words);
  }

  const Attention& call_;
  const AttentionPlan& plan_;
  const Unit& unit_;
  const Unit* next_;
  const Heads heads_;
  const Scaling scaling_;
  const RowBlocks blocks_;
  const int64_t words_, query_words_, width_;
  ShapedTiles tiles_;
  int64_t offsets_[SEGMENT + CHUNK], scale_offsets_[SEGMENT + CHUNK];
  BlockSight whole_;    // of all rows
  BlockSight* sights_;  // per block
  uint64_t left_out_;   // tokens of the chunk whose values are not finite
  QueryRow* rows_;
  uint32_t *query_, *keys_, *values_;
  float *running_, *scores_;
  float* staged_;  // keys and values of a chunk that cannot be read where they are
  Weight* weights_;
};

}  // namespace jengine
