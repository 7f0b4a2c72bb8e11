#include "weights.h"

#include <vector>

#include "large_pages.h"

namespace jengine {
namespace {

// Panels that are packed together: their columns of a row are a few adjacent cache lines.
constexpr int64_t PANELS_OF_TASK = 8;
// Rows of k that are fetched ahead: the lines of a row are few, and the next row is far away.
constexpr int64_t ROWS_AHEAD = 16;

// Half a panel of a weight that is stored with its inputs first.
struct HalfPanel {
  const char* column;  // its first number in row 0
  int64_t columns;     // how many of its 16 columns exist
  char* to;            // its part of the tile's first step
};

// 16 numbers of a row from `at`, or a copy of those that exist, followed by zeros.
const char* whole_run(const char* at, int64_t columns, int64_t bytes, char* copy) {
  if (columns == RUN) return at;
  if (columns == 0) return nullptr;
  std::memset(copy, 0, RUN * bytes);
  std::memcpy(copy, at, columns * bytes);
  return copy;
}

// One step of k of half a panel.
void fill_step(const Weight& weight, const HalfPanel& half, int64_t step, char* to) {
  const int64_t bytes = weight.number_bytes(), row_bytes = weight.outputs * bytes;
  const int64_t k = step * weight.depth();
  const char* at = half.column + k * row_bytes;
  char copy[RUN * 4], other_copy[RUN * 4];
  const char* row = whole_run(at, half.columns, bytes, copy);
  if (weight.number == Number::BFLOAT16) {
    const bool is_last = k + 1 == weight.inputs;
    const char* next =
        is_last ? nullptr : whole_run(at + row_bytes, half.columns, bytes, other_copy);
    interleave(row, next, reinterpret_cast<uint32_t*>(to));
  } else if (row) {
    std::memcpy(to, row, RUN * bytes);
  } else {
    std::memset(to, 0, RUN * bytes);
  }
}

// A row of k after the other, through all panels, as they are in memory.
void fill_from_inputs(const Weight& weight, int64_t first, int64_t last, int64_t step,
                      int64_t steps, char* tiles) {
  const int64_t bytes = weight.number_bytes(), row_bytes = weight.outputs * bytes;
  std::vector<HalfPanel> halves;
  for (int64_t panel = first; panel < last; panel++)
    for (int half = 0; half < 2; half++)
      halves.push_back({weight.data + weight.half_begin(panel, half) * bytes,
                        weight.half_columns(panel, half),
                        tiles + (panel - first) * steps * weight.step_bytes() +
                            half * RUN * bytes * weight.depth()});
  const int64_t last_row = weight.inputs - weight.depth();
  for (int64_t s = step; s < step + steps; s++) {
    const int64_t ahead = std::min(s * weight.depth() + ROWS_AHEAD, last_row);
    for (const HalfPanel& half : halves) {
      for (int64_t k = 0; k < weight.depth(); k++)
        prefetch(half.column + (ahead + k) * row_bytes);
      fill_step(weight, half, s, half.to + (s - step) * weight.step_bytes());
    }
  }
}

void fill_from_outputs(const Weight& weight, int64_t panel, int half, int64_t step, int64_t steps,
                       char* tile) {
  const int64_t column = weight.half_begin(panel, half), count = weight.half_columns(panel, half);
  const int64_t bytes = weight.number_bytes(), depth = weight.depth();
  const int64_t complete = weight.inputs / depth - step;  // steps that do not run over the last k
  const int64_t whole = steps < complete ? steps : complete;
  const char* rows[RUN];
  for (int i = 0; i < RUN; i++)
    rows[i] = i < count
                  ? weight.data + ((column + i) * weight.inputs + step * depth) * bytes
                  : nullptr;
  char* to = tile + half * RUN * bytes * depth;
  if (weight.number == Number::FLOAT16) {
    for (int64_t s = 0; s < steps; s++)
      for (int i = 0; i < RUN; i++) {
        uint16_t value = 0;
        if (rows[i]) std::memcpy(&value, rows[i] + 2 * s, sizeof value);
        std::memcpy(to + s * weight.step_bytes() + 2 * i, &value, sizeof value);
      }
    return;
  }
  // The rows of the next half follow in memory.
  transpose_words(rows, whole, reinterpret_cast<uint32_t*>(to), RUN * weight.inputs * bytes);
  for (int i = 0; whole < steps && i < RUN; i++) {  // half a pair is left
    uint32_t word = 0;
    if (rows[i]) std::memcpy(&word, rows[i] + 4 * whole, 2);
    std::memcpy(to + whole * weight.step_bytes() + 4 * i, &word, sizeof word);
  }
}

}  // namespace

void fill_tiles(const Weight& weight, int64_t first, int64_t last, int64_t step, int64_t steps,
                char* tiles) {
  const int64_t tile_bytes = steps * weight.step_bytes();
  if (weight.storage == Storage::OUTPUTS_FIRST) {
    for (int64_t panel = first; panel < last; panel++)
      for (int half = 0; half < 2; half++)
        fill_from_outputs(weight, panel, half, step, steps, tiles + (panel - first) * tile_bytes);
    return;
  }
  fill_from_inputs(weight, first, last, step, steps, tiles);
}

void pack(Pool& pool, const Weight& weight, char* to) {
  // Weights are read from end to end in every step.
  collapse_into_large_pages(to, weight.packed_bytes());
  const int64_t panels = weight.panels(), panel_bytes = weight.steps() * weight.step_bytes();
  parallel_for(pool, (panels + PANELS_OF_TASK - 1) / PANELS_OF_TASK, [&](int64_t task) {
    const int64_t first = task * PANELS_OF_TASK, last = std::min(first + PANELS_OF_TASK, panels);
    fill_tiles(weight, first, last, 0, weight.steps(), to + first * panel_bytes);
  });
}

}  // namespace jengine
