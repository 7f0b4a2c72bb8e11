#include "matmul.h"

#include <vector>

#include "codes.h"
#include "matmul_plan.h"
#include "matmul_output.h"

namespace jengine {
namespace {

// A tile of the weight and the rows that meet it stay in the second-level cache.
constexpr int64_t TILE_STEPS = 768;
// Panels that are brought into order together, from a weight that is not packed.
constexpr int64_t PANELS_IN_PLACE = 8;
// So far ahead of the sums the weight is prefetched: several lines are always on their way.
constexpr int64_t AHEAD_BYTES = 8192;
// The next panel is prefetched while so many blocks of rows meet this one.
constexpr int64_t MOST_FETCHING_BLOCKS = 4;
// So many blocks of rows are worth a converted copy of a tile of integers, which they share. Beside the
// sums of many rows conversions are free.
template <class Kind>
constexpr int64_t BLOCKS_OF_COPY = IN_TILES<Kind> ? 2 : MOST_ROWS < 8 ? 3 : INT64_MAX;

// Some panels of a task, which are summed up together: one, or those brought into order together.
template <class Kind>
class Strip {
  using Converted = typename Kind::Converted;

 public:
  Strip(const Matmul& call, const Left& left, const MatmulTask& task, ShapedTiles& tiles,
        int64_t panel, int64_t panels)
      : call_(call), left_(left), task_(task), group_(call.groups[task.group]), tiles_(tiles),
        weight_(call.weight), first_(panel), panels_(panels),
        blocks_(task.last_block - task.first_block),
        copies_(weight_.storage != Storage::PACKED ||
                (Kind::IS_CODES && (!HAS_KERNEL<Kind> || blocks_ >= BLOCKS_OF_COPY<Kind>))) {
    weight_.data = group_.weight;
  }

  void run() {
    const int64_t all = weight_.steps();
    const int64_t tiles = !copies_ && blocks_ == 1 ? 1 : (all + TILE_STEPS - 1) / TILE_STEPS;
    const int64_t most = tile_steps((all + tiles - 1) / tiles);
    const size_t num_sums = (tiles == 1 ? together() : panels_ * blocks_) * BLOCK_SUMS;
    const size_t widened = num_scales() + num_offsets();
    Arena memory(task_scratch().take(Arena::bytes<float>(num_sums) + Arena::bytes<float>(widened) +
                                     (copies_ ? panels_ * most * Converted::STEP_BYTES : 0)));
    sums_ = memory.array<float>(num_sums);
    if constexpr (Kind::IS_CODES) widen_scales(memory.array<float>(widened));
    char* filled = copies_ ? memory.array<char>(panels_ * most * Converted::STEP_BYTES) : nullptr;
    for (int64_t step = 0; step < all; step += most) {
      const int64_t steps = std::min(most, all - step);
      if (copies_) fill(step, steps, filled);
      for (int64_t p = 0; p < panels_; p += together()) {
        const char* tile = copies_ ? filled + p * steps * Converted::STEP_BYTES
                                   : weight_.packed_tile(first_ + p, step);
        for (int64_t b = 0; b < blocks_; b++)
          multiply(tile, step, steps, p, b, sums_ + (tiles == 1 ? 0 : p * blocks_ + b) * BLOCK_SUMS);
      }
    }
  }

 private:
  static constexpr int64_t BLOCK_SUMS = MOST_ROWS_OF<Kind> * PANEL;

  // Numbers that a group shares are widened once for all rows; scales stay in place that are no codes.
  int64_t num_scales() const {
    return Kind::IS_CODES && weight_.scales.scale.codes != Codes::NONE
               ? panels_ * weight_.scale_groups() * PANEL
               : 0;
  }
  int64_t num_offsets() const {
    return Kind::IS_CODES && weight_.has_offsets() ? panels_ * weight_.scale_groups() * PANEL : 0;
  }
  void widen_scales(float* to) {
    const int64_t count = weight_.scale_groups() * PANEL;
    float* offsets = num_offsets() ? to + num_scales() : nullptr;
    for (int64_t p = 0; p < panels_; p++) {
      const Scales own = weight_.later(group_.scales, first_ + p);
      GroupScales scales{own.scale.data, own.scale.number == Number::FLOAT16};
      if (num_scales()) {
        widen(own.scale, weight_.scale_groups(), weight_.groups_of_unit(), panels_, to + p * count);
        scales = {reinterpret_cast<const char*>(to + p * count)};
      }
      if (p == 0) scales_ = scales;
      if (offsets) write_offsets(weight_, own, scales, panels_, offsets + p * count);
    }
    offsets_ = offsets;
  }

  // A tile has whole groups of k, unless there is only one; or whole tiles of the processor.
  int64_t tile_steps(int64_t least) const {
    if (!Kind::IS_CODES || weight_.scale_groups() == 1)
      return IN_TILES<Kind> ? (least + TILE_WORDS - 1) / TILE_WORDS * TILE_WORDS : least;
    return (least + weight_.group_steps() - 1) / weight_.group_steps() * weight_.group_steps();
  }

  void fill(int64_t step, int64_t steps, char* tiles) const {
    if constexpr (Kind::IS_CODES) {
      convert_tile<Kind>(weight_.packed_tile(first_, step), steps, tiles);
    } else {
      fill_tiles(weight_, first_, first_ + panels_, step, steps, tiles);
    }
  }

  void multiply(const char* tile, int64_t step, int64_t steps, int64_t p, int64_t b, float* sums) {
    const Block block = left_.block(task_.group, task_.first_block + b);
    const bool is_last = step + steps == weight_.steps();
    for (int64_t q = p; is_last && q < p + together(); q++) expect(call_, block, columns_of(q));
    const uint32_t* words = left_.wait_for(task_.group, task_.first_block + b);
    if (!IN_TILES<Kind>) words += step * block.count;
    const GroupScaling scaling = scaling_of(step, steps);
    const Ahead ahead = ahead_of(tile, p, b, steps);
    if constexpr (IN_TILES<Kind>) {
      tiles_.shape(block.count);
      const auto kernel = copies_ ? multiply_in_tiles<Converted> : multiply_in_tiles<Kind>;
      kernel(packed_tiles(words, block.count), tile, step, steps, sums, PANEL, step == 0, ahead,
             scaling);
    } else if (together() == 2) {
      multiply_two(words, block.count, tile, steps, sums, ahead, scaling);
    } else {
      kernel(block.count)(words, tile, steps, sums, PANEL, step == 0, ahead, scaling);
    }
    if (is_last && weight_.rounds_rows())
      scale_integers(left_.sums(task_.group, task_.first_block + b), block.count,
                     reinterpret_cast<const float*>(group_.scales.scale.data) + (first_ + p) * PANEL,
                     sums);
    for (int64_t q = 0; is_last && q < together(); q++) {
      if (offsets_) add_offsets(b, block.count, p + q, sums + q * BLOCK_SUMS);
      finish(call_, group_.bias, block, columns_of(p + q), sums + q * BLOCK_SUMS);
    }
  }

  // The sums of a row's groups times the offsets of a panel: a matmul over groups.
  void add_offsets(int64_t b, int rows, int64_t p, float* sums) const {
    const float* row_sums = left_.sums(task_.group, task_.first_block + b);
    const int64_t groups = weight_.scale_groups();
    const RowBlocks blocks(rows);
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t row0 = blocks.begin(block);
      multiply_for<Float32>(blocks.in(block))(
          reinterpret_cast<const uint32_t*>(row_sums + row0 * groups),
          reinterpret_cast<const char*>(offsets_ + p * groups * PANEL), groups,
          sums + row0 * PANEL, PANEL, false, {}, {});
    }
  }

  Multiply kernel(int rows) const {
    if constexpr (HAS_KERNEL<Kind>)
      if (!copies_) return multiply_for<Kind>(rows);
    return multiply_for<Converted>(rows);
  }

  Columns columns_of(int64_t p) const {
    const int64_t width = weight_.results_in_panel(), column = (first_ + p) * width;
    return {column, std::min(width, weight_.results() - column)};
  }

  // Panels of integers that one call multiplies by.
  int64_t together() const { return Kind::IS_CODES && !copies_ ? panels_ : 1; }

  void multiply_two(const uint32_t* words, int rows, const char* tile, int64_t steps, float* sums,
                    Ahead ahead, const GroupScaling& scaling) const {
    if constexpr (Kind::IS_CODES && HAS_KERNEL<Kind>)
      multiply_two_for<Kind>(rows)(words, tile, weight_.steps() * Kind::STEP_BYTES, steps, sums,
                                   BLOCK_SUMS, ahead, scaling, weight_.scale_groups());
  }

  // How the sums of a tile are scaled. Only a group that is the only one has several tiles.
  GroupScaling scaling_of(int64_t step, int64_t steps) const {
    if constexpr (!Kind::IS_CODES) return {};
    const int64_t groups = weight_.scale_groups(), size = weight_.group_steps();
    const bool ends = groups > 1 || step + steps == weight_.steps();
    return {ends ? scales_.later(step / size) : GroupScales{}, size, groups == 1 && step > 0};
  }

  // What to prefetch while a block of rows meets a tile: for the first block more of this tile; for
  // the others, which find it in the cache, the next panel.
  Ahead ahead_of(const char* tile, int64_t p, int64_t block, int64_t steps) const {
    if (copies_) return {};
    if (block == 0) return {tile + AHEAD_BYTES, Kind::STEP_BYTES};
    const int64_t fetching = blocks_ > 4 ? MOST_FETCHING_BLOCKS : blocks_ > 2 ? 2 : 1;
    if (block > fetching || first_ + p + 1 == task_.last_panel) return {};
    const int64_t share = Kind::STEP_BYTES / fetching;
    return {tile + weight_.steps() * Kind::STEP_BYTES + (block - 1) * steps * share, share};
  }

  const Matmul& call_;
  const Left& left_;
  const MatmulTask& task_;
  const RowGroup& group_;
  ShapedTiles& tiles_;
  Weight weight_;
  const int64_t first_, panels_, blocks_;
  const bool copies_;  // tiles are brought into order, or converted, in memory of this task
  float* sums_ = nullptr;
  GroupScales scales_;              // of integers, for each panel
  const float* offsets_ = nullptr;  // for each panel [groups][32], or null
};

template <class Kind>
void run(const Matmul& call, const Left& left, const MatmulTask& task) {
  const bool is_few = task.last_block - task.first_block == 1 &&
                      left.block(task.group, task.first_block).count <= MOST_ROWS_OF_TWO;
  constexpr bool TAKES_TWO = Kind::IS_CODES && HAS_KERNEL<Kind> && !IN_TILES<Kind>;
  const int64_t most = call.weight.storage != Storage::PACKED ? PANELS_IN_PLACE
                       : TAKES_TWO && is_few                  ? 2
                                                              : 1;
  ShapedTiles tiles;
  for (int64_t panel = task.first_panel; panel < task.last_panel; panel += most)
    Strip<Kind>(call, left, task, tiles, panel, std::min(most, task.last_panel - panel)).run();
}

template <class Pairs, class Singles>
void run_codes(const Matmul& call, const Left& left, const MatmulTask& task) {
  if constexpr (BUILT_WITH_TILES)
    if (call.weight.in_tiles()) return run<TiledCodes<Pairs>>(call, left, task);
  call.weight.depth() == 2 ? run<Pairs>(call, left, task) : run<Singles>(call, left, task);
}
template <Codes CODES>
void run_codes(const Matmul& call, const Left& left, const MatmulTask& task) {
  run_codes<CodePairs<CODES>, CodeSingles<CODES>>(call, left, task);
}

template <class Quads>
void run_quads(const Matmul& call, const Left& left, const MatmulTask& task) {
  call.weight.in_tiles() ? run<QuadsInTiles<Quads>>(call, left, task)
                         : run<Quads>(call, left, task);
}

void run(const Matmul& call, const Left& left, const MatmulTask& task) {
  const Codes around = call.weight.form().around;
  if (call.weight.rounds_rows())
    return around == Codes::INT8 ? run_quads<Int8Quads>(call, left, task)
                                 : run_quads<Int4Quads>(call, left, task);
  switch (around) {
    case Codes::INT2: return run_codes<Codes::INT2>(call, left, task);
    case Codes::INT3: return run_codes<Codes::INT3>(call, left, task);
    case Codes::INT4: return run_codes<Codes::INT4>(call, left, task);
    case Codes::INT5: return run_codes<Codes::INT5>(call, left, task);
    case Codes::INT6: return run_codes<Codes::INT6>(call, left, task);
    case Codes::IQ4: return run_codes<Codes::IQ4>(call, left, task);
    case Codes::INT8: return run_codes<Int8Pairs, Int8Singles>(call, left, task);
    default: break;
  }
  if (call.weight.in_tiles()) return run<PairsInTiles>(call, left, task);
  switch (call.weight.number) {
    case Number::BFLOAT16: return run<Bfloat16>(call, left, task);
    case Number::FLOAT16: return run<Float16>(call, left, task);
    default: return run<Float32>(call, left, task);
  }
}

std::vector<MatmulTask> plan(const Matmul& call, int64_t threads) {
  std::vector<int64_t> rows;
  for (int64_t g = 0; g < call.num_groups; g++)
    rows.push_back(call.groups[g].end - call.groups[g].begin);
  const int64_t bytes = call.weight.results_in_panel() * (call.out.is_bfloat16 ? 2 : 4);
  return plan_matmul(rows, call.weight.panels(), std::max<int64_t>(1, 64 / bytes), threads,
                     call.most_rows());
}

}  // namespace

void matmul(Pool& pool, const Matmul& call) {
  const std::vector<MatmulTask> tasks = plan(call, std::max<int64_t>(1, pool.threads()));
  if (tasks.empty()) return;
  Left left(call, call_scratch().take(Left::bytes(call)));
  const int64_t packs = left.num_blocks();
  parallel_for(pool, packs + (int64_t)tasks.size(), [&](int64_t i) {
    if (i < packs) return left.pack(i);
    run(call, left, tasks[i - packs]);
  });
}

}  // namespace jengine
