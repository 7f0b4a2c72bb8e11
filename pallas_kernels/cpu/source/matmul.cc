#include "matmul.h"

#include <vector>

#include "matmul_plan.h"

namespace jengine {
namespace {

// A tile of the weight and the rows that meet it stay in the second-level cache.
constexpr int64_t TILE_STEPS = 768;
// Panels that are brought into order together, from a weight that is not packed.
constexpr int64_t PANELS_IN_PLACE = 8;
// So far ahead of the sums the weight is prefetched: several lines are always on their way.
constexpr int64_t AHEAD_STEPS = 64;
// The next panel is prefetched while so many blocks of rows meet this one.
constexpr int64_t MOST_FETCHING_BLOCKS = 4;

// A block of rows on its way through the micro kernel.
struct Block {
  const int32_t* rows;  // their numbers
  int count;
};

// The rows of all groups, ready for the micro kernel: those of a block as [step][rows].
class Left {
 public:
  Left(const Matmul& call, uint32_t* words) : call_(call), words_(words) {
    for (int64_t g = 0; g < call.num_groups; g++) {
      first_.push_back((int64_t)places_.size());
      for (int64_t b = 0; b < blocks_of(g).count; b++) places_.push_back({g, b});
    }
    ready_ = std::make_unique<std::atomic<bool>[]>(places_.size());
  }
  static size_t bytes(const Matmul& call) {
    const int64_t rows = call.num_groups ? call.groups[call.num_groups - 1].end : 0;
    return rows * call.weight.steps() * sizeof(uint32_t);
  }
  RowBlocks blocks_of(int64_t group) const {
    return RowBlocks(call_.groups[group].end - call_.groups[group].begin);
  }
  int64_t num_blocks() const { return (int64_t)places_.size(); }

  // Prepares one of all blocks. Others may wait for it, so it is ready even if this fails.
  void pack(int64_t i) {
    struct Ready {
      std::atomic<bool>& flag;
      ~Ready() { flag.store(true, std::memory_order_release); }
    } ready{ready_[i]};
    const auto [group, b] = places_[i];
    const Block rows = block(group, b);
    pack_rows(call_.x, rows.rows, rows.count, call_.weight.number, words(group, b));
  }
  Block block(int64_t group, int64_t b) const {
    const RowBlocks blocks = blocks_of(group);
    return {call_.rows + call_.groups[group].begin + blocks.begin(b), blocks.in(b)};
  }
  const uint32_t* wait_for(int64_t group, int64_t b) const {
    const std::atomic<bool>& ready = ready_[first_[group] + b];
    wait_until([&] { return ready.load(std::memory_order_acquire); });
    return words(group, b);
  }

 private:
  uint32_t* words(int64_t group, int64_t b) const {
    return words_ + (call_.groups[group].begin + blocks_of(group).begin(b)) * call_.weight.steps();
  }

  struct Place {
    int64_t group, block;
  };
  const Matmul& call_;
  uint32_t* words_;
  std::vector<int64_t> first_;  // of each group's blocks
  std::vector<Place> places_;
  std::unique_ptr<std::atomic<bool>[]> ready_;
};

// Columns of all rows of a block: the results of one panel.
struct Columns {
  int64_t first, count;
};

// Sums become results and are written, a row after the other, LANES at a time.
template <class Value>
void write(const Output& out, int64_t width, Block block, Columns columns, const float* sums,
           const Value& value) {
  for (int r = 0; r < block.count; r++, sums += PANEL) {
    const int64_t at = block.rows[r] * width + columns.first;
    for (int64_t i = 0; i < columns.count; i += LANES) {
      const int64_t left = columns.count - i;
      Floats result = value(sums, i, left);
      if (out.residual) result += load_some<Floats>(out.residual + at + i, left);
      if (out.is_bfloat16) {
        store_some(out.data + (at + i) * 2, to_bfloat16(result), left);
      } else {
        store_some(out.data + (at + i) * 4, result, left);
      }
    }
  }
}

// Sums from a panel's column `at` on, with the bias of the weight's outputs from `output` on.
Floats with_bias(const float* sums, int64_t at, const float* bias, int64_t output, int64_t left) {
  const Floats sum = load<Floats>(sums + at);
  return bias ? sum + load_some<Floats>(bias + output, std::max<int64_t>(0, left)) : sum;
}

// Bias and activation, or a gate with its number.
void finish(const Matmul& call, const float* bias, Block block, Columns columns,
            const float* sums) {
  const Output& out = call.out;
  const int64_t width = call.weight.results(), first = columns.first;
  const auto plain = [&](const float* at, int64_t i, int64_t left) {
    return activated(out.activation, with_bias(at, i, bias, first + i, left));
  };
  const auto halves = [&](const float* at, int64_t i, int64_t left) {
    return activated(out.activation, with_bias(at, i, bias, first + i, left)) *
           with_bias(at, RUN + i, bias, width + first + i, left);
  };
  const auto pairs = [&](const float* at, int64_t i, int64_t left) {
    const int64_t begin = 2 * i, from = 2 * (first + i);
    const Floats low = with_bias(at, begin, bias, from, 2 * left);
    const Floats high = with_bias(at, begin + LANES, bias, from + LANES, 2 * left - LANES);
    return activated(out.activation, every_other(low, high, 0)) * every_other(low, high, 1);
  };
  switch (call.weight.gate) {
    case Gate::NONE: return write(out, width, block, columns, sums, plain);
    case Gate::HALVES: return write(out, width, block, columns, sums, halves);
    case Gate::PAIRS: return write(out, width, block, columns, sums, pairs);
  }
}

// Fetches the lines that finish() will need: each row has its own.
void expect(const Matmul& call, Block block, Columns columns) {
  const int64_t bytes = call.out.is_bfloat16 ? 2 : 4;
  for (int r = 0; r < block.count; r++) {
    const int64_t at = block.rows[r] * call.weight.results() + columns.first;
    for (int64_t i = 0; i < columns.count * bytes; i += 64)
      prefetch_to_write(call.out.data + at * bytes + i);
    for (int64_t i = 0; call.out.residual && i < columns.count; i += 16)
      prefetch_close(call.out.residual + at + i);
  }
}

// Some panels of a task, which are summed up together: one, or those brought into order together.
template <class Kind>
class Strip {
 public:
  Strip(const Matmul& call, const Left& left, const MatmulTask& task, int64_t panel, int64_t panels)
      : call_(call), left_(left), task_(task), weight_(call.weight), first_(panel),
        panels_(panels), blocks_(task.last_block - task.first_block) {
    weight_.data = call.groups[task.group].weight;
  }

  void run() {
    const bool packed = weight_.storage == Storage::PACKED;
    const int64_t all = weight_.steps();
    const int64_t tiles = packed && blocks_ == 1 ? 1 : (all + TILE_STEPS - 1) / TILE_STEPS;
    const int64_t most = (all + tiles - 1) / tiles;
    const size_t num_sums = (tiles == 1 ? 1 : panels_ * blocks_) * BLOCK_SUMS;
    Arena memory(task_scratch().take(Arena::bytes<float>(num_sums) +
                                     (packed ? 0 : panels_ * most * Kind::STEP_BYTES)));
    sums_ = memory.array<float>(num_sums);
    char* filled = packed ? nullptr : memory.array<char>(panels_ * most * Kind::STEP_BYTES);
    for (int64_t step = 0; step < all; step += most) {
      const int64_t steps = std::min(most, all - step);
      if (!packed) fill_tiles(weight_, first_, first_ + panels_, step, steps, filled);
      for (int64_t p = 0; p < panels_; p++) {
        const char* tile = packed ? weight_.packed_tile(first_ + p, step)
                                  : filled + p * steps * Kind::STEP_BYTES;
        for (int64_t b = 0; b < blocks_; b++)
          multiply(tile, step, steps, p, b, sums_ + (tiles == 1 ? 0 : p * blocks_ + b) * BLOCK_SUMS);
      }
    }
  }

 private:
  static constexpr int64_t BLOCK_SUMS = MOST_ROWS * PANEL;

  void multiply(const char* tile, int64_t step, int64_t steps, int64_t p, int64_t b, float* sums) {
    const Block block = left_.block(task_.group, task_.first_block + b);
    const bool is_last = step + steps == weight_.steps();
    const int64_t width = weight_.results_in_panel(), column = (first_ + p) * width;
    const Columns columns{column, std::min(width, weight_.results() - column)};
    if (is_last) expect(call_, block, columns);
    const uint32_t* words = left_.wait_for(task_.group, task_.first_block + b);
    multiply_for<Kind>(block.count)(words + step * block.count, tile, steps, sums, PANEL, step == 0,
                                    ahead_of(tile, p, b, steps));
    if (is_last) finish(call_, call_.groups[task_.group].bias, block, columns, sums);
  }

  // What to prefetch while a block of rows meets a tile: for the first block more of this tile; for
  // the others, which find it in the cache, the next panel.
  Ahead ahead_of(const char* tile, int64_t p, int64_t block, int64_t steps) const {
    if (weight_.storage != Storage::PACKED) return {};
    if (block == 0) return {tile + AHEAD_STEPS * Kind::STEP_BYTES, Kind::STEP_BYTES};
    const int64_t fetching = blocks_ > 4 ? MOST_FETCHING_BLOCKS : blocks_ > 2 ? 2 : 1;
    if (block > fetching || first_ + p + 1 == task_.last_panel) return {};
    const int64_t share = Kind::STEP_BYTES / fetching;
    return {tile + weight_.steps() * Kind::STEP_BYTES + (block - 1) * steps * share, share};
  }

  const Matmul& call_;
  const Left& left_;
  const MatmulTask& task_;
  Weight weight_;
  const int64_t first_, panels_, blocks_;
  float* sums_ = nullptr;
};

template <class Kind>
void run(const Matmul& call, const Left& left, const MatmulTask& task) {
  const int64_t most = call.weight.storage == Storage::PACKED ? 1 : PANELS_IN_PLACE;
  for (int64_t panel = task.first_panel; panel < task.last_panel; panel += most)
    Strip<Kind>(call, left, task, panel, std::min(most, task.last_panel - panel)).run();
}

std::vector<MatmulTask> plan(const Matmul& call, int64_t threads) {
  std::vector<int64_t> rows;
  for (int64_t g = 0; g < call.num_groups; g++)
    rows.push_back(call.groups[g].end - call.groups[g].begin);
  const int64_t bytes = call.weight.results_in_panel() * (call.out.is_bfloat16 ? 2 : 4);
  return plan_matmul(rows, call.weight.panels(), std::max<int64_t>(1, 64 / bytes), threads);
}

}  // namespace

void matmul(Pool& pool, const Matmul& call) {
  const std::vector<MatmulTask> tasks = plan(call, std::max<int64_t>(1, pool.threads()));
  if (tasks.empty()) return;
  Left left(call, reinterpret_cast<uint32_t*>(call_scratch().take(Left::bytes(call))));
  const int64_t packs = left.num_blocks();
  parallel_for(pool, packs + (int64_t)tasks.size(), [&](int64_t i) {
    if (i < packs) return left.pack(i);
    switch (call.weight.number) {
      case Number::BFLOAT16: return run<Bfloat16>(call, left, tasks[i - packs]);
      case Number::FLOAT16: return run<Float16>(call, left, tasks[i - packs]);
      case Number::FLOAT32: return run<Float32>(call, left, tasks[i - packs]);
    }
  });
}

}  // namespace jengine
