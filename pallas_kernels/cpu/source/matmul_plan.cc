#include "matmul_plan.h"

#include <algorithm>

#include "micro_kernel.h"

namespace jengine {
namespace {

// The rows of a task stay in the second-level cache while panel after panel meets them.
constexpr int64_t MOST_ROWS_OF_TASK = 16 * MOST_ROWS;
// Few tasks leave threads idle at the end, or wait for one that starts late; many cost time to claim.
constexpr int64_t FEWEST_PER_THREAD = 4, MOST_PER_THREAD = 16;
// Reading a panel from memory takes about as long as multiplying so many rows with it.
constexpr int64_t ROWS_OF_READING = 8;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Division {
  int64_t pieces, parts;  // of the panels and of the blocks
};

// When the last thread is done, in panels times blocks: all tasks take as long as the largest.
int64_t end_of(Division division, int64_t panels, int64_t blocks, int64_t threads) {
  return ceil_div(division.pieces * division.parts, threads) * ceil_div(panels, division.pieces) *
         ceil_div(blocks, division.parts);
}

// Divides a group among threads; the last round of tasks should be a full one.
Division divide(int64_t panels, int64_t blocks, int64_t most_blocks, int64_t threads) {
  if (threads == 1) return {1, ceil_div(blocks, most_blocks)};
  const int64_t fewest = threads * FEWEST_PER_THREAD, most = threads * MOST_PER_THREAD;
  const int64_t least_parts =
      std::min(blocks, std::max(ceil_div(blocks, most_blocks), ceil_div(fewest, panels)));
  Division best{};
  int64_t earliest = INT64_MAX;
  for (int64_t parts = least_parts; parts <= std::min(blocks, 2 * least_parts); parts++) {
    const int64_t last = std::min(panels, ceil_div(most, parts));
    for (int64_t pieces = std::min(last, ceil_div(fewest, parts)); pieces <= last; pieces++) {
      const int64_t end = end_of({pieces, parts}, panels, blocks, threads);
      if (end >= earliest) continue;
      best = {pieces, parts}, earliest = end;
      if (end * threads * 32 <= panels * blocks * 33) return best;  // perfect within 3%
    }
  }
  return best;
}

// Of several groups, each gets threads in proportion to its work, and thereby tasks.
Division divide_one_of_many(int64_t panels, int64_t blocks, int64_t most_blocks, int64_t work,
                            int64_t all_work, int64_t threads) {
  const int64_t wanted = ceil_div(threads * FEWEST_PER_THREAD * work, all_work);
  const int64_t parts =
      std::min(blocks, std::max(ceil_div(blocks, most_blocks), ceil_div(wanted, panels)));
  return {std::min(panels, ceil_div(wanted, parts)), parts};
}

int64_t work_of(int64_t rows) { return rows == 0 ? 0 : rows + ROWS_OF_READING; }

}  // namespace

std::vector<MatmulTask> plan_matmul(const std::vector<int64_t>& rows, int64_t panels, int64_t grain,
                                    int64_t threads, int64_t most_rows) {
  std::vector<MatmulTask> tasks;
  int64_t all_work = 0;
  for (int64_t count : rows) all_work += work_of(count);
  const int64_t grains = ceil_div(panels, grain), most_blocks = ceil_div(MOST_ROWS_OF_TASK, most_rows);
  for (size_t g = 0; g < rows.size(); g++) {
    const int64_t blocks = RowBlocks(rows[g], most_rows).count;
    if (blocks == 0) continue;
    const auto [pieces, parts] =
        rows.size() == 1
            ? divide(grains, blocks, most_blocks, threads)
            : divide_one_of_many(grains, blocks, most_blocks, work_of(rows[g]), all_work, threads);
    for (int64_t piece = 0; piece < pieces; piece++)
      for (int64_t part = 0; part < parts; part++)
        tasks.push_back({(int64_t)g, part * blocks / parts, (part + 1) * blocks / parts,
                         piece * grains / pieces * grain,
                         std::min(panels, (piece + 1) * grains / pieces * grain)});
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const MatmulTask& a, const MatmulTask& b) {
    return (a.last_block - a.first_block) * (a.last_panel - a.first_panel) >
           (b.last_block - b.first_block) * (b.last_panel - b.first_panel);
  });
  return tasks;
}

}  // namespace jengine
