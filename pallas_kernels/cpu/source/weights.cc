#include "weights.h"

namespace jengine {
namespace {

// A row of k, for 16 columns that may end before the weight does.
struct InputRow {
  char copy[RUN * 4];
  const char* at;

  InputRow(const Weight& weight, int64_t k, int64_t column, int64_t columns) : at(nullptr) {
    if (k >= weight.inputs || columns == 0) return;
    const int64_t bytes = weight.number_bytes();
    at = weight.data + (k * weight.outputs + column) * bytes;
    if (columns == RUN) return;
    std::memset(copy, 0, sizeof copy);
    std::memcpy(copy, at, columns * bytes);
    at = copy;
  }
};

void fill_from_inputs(const Weight& weight, int64_t panel, int half, int64_t step, char* to) {
  const int64_t column = weight.half_begin(panel, half);
  const int64_t columns = weight.half_columns(panel, half);
  const int64_t bytes = RUN * weight.number_bytes();
  to += half * bytes * weight.depth();
  const InputRow row(weight, step * weight.depth(), column, columns);
  if (weight.number == Number::BFLOAT16) {
    const InputRow next(weight, step * 2 + 1, column, columns);
    interleave(row.at, next.at, reinterpret_cast<uint32_t*>(to));
  } else if (row.at) {
    std::memcpy(to, row.at, bytes);
  } else {
    std::memset(to, 0, bytes);
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
  transpose_words(rows, whole, reinterpret_cast<uint32_t*>(to));
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
  // A row of k at a time, through all panels: it is contiguous in memory.
  for (int64_t s = 0; s < steps; s++)
    for (int64_t panel = first; panel < last; panel++)
      for (int half = 0; half < 2; half++)
        fill_from_inputs(weight, panel, half, step + s,
                         tiles + (panel - first) * tile_bytes + s * weight.step_bytes());
}

}  // namespace jengine
