#include "matmul.h"

#include <vector>

namespace jengine {
namespace {

// Sizes that keep a tile of the weight in the first-level cache, and the rows and sums of a task in
// the second.
constexpr int64_t TILE_STEPS = 256;
constexpr int64_t MOST_PANELS = 8, MOST_BLOCKS = 16;
constexpr int64_t TASKS_PER_THREAD = 4;
// So far ahead of the sums the weight is prefetched: several lines are always on their way.
constexpr int64_t AHEAD_STEPS = 24;
// From this many blocks of rows on, several threads prepare them.
constexpr int64_t MANY_BLOCKS = 4;

struct Task {
  const RowGroup* group;
  int64_t first_block, last_block, first_panel, last_panel;
};

// What a panel's sums become, LANES at a time: bias and activation, or a gate with its number.
Floats activated(const Matmul& call, const float* sums, int i, int64_t column, int64_t left) {
  const Output& out = call.out;
  const Floats sum = load<Floats>(sums + i);
  if (call.weight.gated) return activated(out.activation, sum) * load<Floats>(sums + RUN + i);
  if (!out.bias) return activated(out.activation, sum);
  return activated(out.activation, sum + load_some<Floats>(out.bias + column + i, left));
}

// Writes one row of a panel; the first `count` of its columns exist.
void finish(const Matmul& call, int64_t row, int64_t column, int64_t count, const float* sums) {
  const Output& out = call.out;
  const int64_t at = row * call.weight.results() + column;
  for (int i = 0; i < count; i += LANES) {
    Floats value = activated(call, sums, i, column, count - i);
    if (out.residual) value += load_some<Floats>(out.residual + at + i, count - i);
    if (out.is_bfloat16) {
      store_some(out.data + (at + i) * 2, to_bfloat16(value), count - i);
    } else {
      store_some(out.data + (at + i) * 4, value, count - i);
    }
  }
}

// The rows of all groups, ready for the micro kernel: those of a block as [step][rows].
class Left {
 public:
  Left(Pool& pool, const Matmul& call, uint32_t* words) : call_(call), words_(words) {
    std::vector<std::pair<const RowGroup*, int64_t>> blocks;
    for (int64_t g = 0; g < call.num_groups; g++)
      for (int64_t b = 0; b < blocks_of(call.groups[g]).count; b++)
        blocks.push_back({call.groups + g, b});
    auto pack = [&](int64_t i) { this->pack(*blocks[i].first, blocks[i].second); };
    const int64_t count = (int64_t)blocks.size();
    if (count >= MANY_BLOCKS) {
      parallel_for(pool, count, pack);
    } else {
      for (int64_t i = 0; i < count; i++) pack(i);
    }
  }
  static RowBlocks blocks_of(const RowGroup& group) { return RowBlocks(group.end - group.begin); }
  static size_t bytes(const Matmul& call) {
    const int64_t rows = call.num_groups ? call.groups[call.num_groups - 1].end : 0;
    return rows * call.weight.steps() * sizeof(uint32_t);
  }
  const uint32_t* block(const RowGroup& group, int64_t b) const {
    return words_ + (group.begin + blocks_of(group).begin(b)) * call_.weight.steps();
  }

 private:
  void pack(const RowGroup& group, int64_t b) {
    const RowBlocks blocks = blocks_of(group);
    float* values = reinterpret_cast<float*>(
        task_scratch().take((call_.x.width + 2 * LANES) * sizeof(float)));
    pack_rows(call_.x, call_.rows + group.begin + blocks.begin(b), blocks.in(b),
              call_.weight.number, values, const_cast<uint32_t*>(block(group, b)));
  }

  const Matmul& call_;
  uint32_t* words_;
};

// What to prefetch while a block of rows meets a tile: for the first block more of this tile; for
// the others, which find it in the cache, the next panel.
Ahead ahead_of(const Weight& weight, const char* tile, bool is_last_panel, int64_t block,
               int64_t blocks, int64_t steps) {
  if (weight.storage != Storage::PACKED) return {};
  if (block == 0) return {tile + AHEAD_STEPS * weight.step_bytes(), weight.step_bytes()};
  if (is_last_panel) return {};
  const int64_t share = weight.step_bytes() / (blocks - 1);
  const char* next = tile + weight.steps() * weight.step_bytes();
  return {next + (block - 1) * steps * share, share};
}

template <class Kind>
void run(const Matmul& call, const Left& left, const Task& task) {
  Weight weight = call.weight;
  weight.data = task.group->weight;
  const RowBlocks blocks = Left::blocks_of(*task.group);
  const int64_t num_blocks = task.last_block - task.first_block;
  const int64_t num_panels = task.last_panel - task.first_panel;
  const bool packed = weight.storage == Storage::PACKED;
  const int64_t all_steps = weight.steps();
  const bool streams = packed && num_blocks == 1;
  const int64_t most_steps = streams ? all_steps : std::min(all_steps, TILE_STEPS);
  const int64_t block_sums = blocks.size * PANEL, tile_bytes = most_steps * Kind::STEP_BYTES;
  const size_t num_sums = num_panels * num_blocks * block_sums;
  Arena memory(task_scratch().take(Arena::bytes<float>(num_sums) +
                                   (packed ? 0 : num_panels * tile_bytes)));
  float* all_sums = memory.array<float>(num_sums);
  char* filled = packed ? nullptr : memory.array<char>(num_panels * tile_bytes);
  for (int64_t step = 0; step < all_steps; step += most_steps) {
    const int64_t steps = std::min(most_steps, all_steps - step);
    if (!packed) fill_tiles(weight, task.first_panel, task.last_panel, step, steps, filled);
    for (int64_t p = 0; p < num_panels; p++) {
      const int64_t panel = task.first_panel + p;
      const char* tile = packed ? weight.packed_tile(panel, step)
                                : filled + p * steps * Kind::STEP_BYTES;
      for (int64_t b = 0; b < num_blocks; b++) {
        const int64_t block = task.first_block + b;
        const int rows = blocks.in(block);
        float* sums = all_sums + (p * num_blocks + b) * block_sums;
        const Ahead ahead = ahead_of(weight, tile, p + 1 == num_panels, b, num_blocks, steps);
        multiply_for<Kind>(rows)(left.block(*task.group, block) + step * rows, tile, steps, sums,
                                 PANEL, step == 0, ahead);
        if (step + steps < all_steps) continue;
        const int64_t width = weight.results_in_panel(), column = panel * width;
        const int64_t count = std::min(width, weight.results() - column);
        const int32_t* numbers = call.rows + task.group->begin + blocks.begin(block);
        for (int r = 0; r < rows; r++) finish(call, numbers[r], column, count, sums + r * PANEL);
      }
    }
  }
}

// Panels that a task takes: few enough for every thread to have several tasks.
std::vector<Task> plan(const Matmul& call, int64_t threads) {
  std::vector<Task> tasks;
  const int64_t panels = call.weight.panels();
  const int64_t wanted = threads == 1 ? 1 : threads * TASKS_PER_THREAD;
  for (int64_t g = 0; g < call.num_groups; g++) {
    const RowGroup* group = call.groups + g;
    const int64_t blocks = Left::blocks_of(*group).count;
    const int64_t parts = (blocks + MOST_BLOCKS - 1) / MOST_BLOCKS;
    const int64_t shared = std::max<int64_t>(1, wanted / (parts * call.num_groups));
    const int64_t width = std::clamp<int64_t>((panels + shared - 1) / shared, 1, MOST_PANELS);
    for (int64_t p = 0; p < panels; p += width)
      for (int64_t part = 0; part < parts; part++)
        tasks.push_back({group, part * blocks / parts, (part + 1) * blocks / parts, p,
                         std::min(p + width, panels)});
  }
  return tasks;
}

}  // namespace

void matmul(Pool& pool, const Matmul& call) {
  const std::vector<Task> tasks = plan(call, std::max<int64_t>(1, pool.threads()));
  if (tasks.empty()) return;
  const Left left(pool, call, reinterpret_cast<uint32_t*>(call_scratch().take(Left::bytes(call))));
  parallel_for(pool, (int64_t)tasks.size(), [&](int64_t i) {
    switch (call.weight.number) {
      case Number::BFLOAT16: return run<Bfloat16>(call, left, tasks[i]);
      case Number::FLOAT16: return run<Float16>(call, left, tasks[i]);
      case Number::FLOAT32: return run<Float32>(call, left, tasks[i]);
    }
  });
}

}  // namespace jengine
