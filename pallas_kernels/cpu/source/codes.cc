#include "codes.h"

#include "large_pages.h"
#include "weights.h"

namespace jengine {
namespace {

// Adds a code to its place in a plane of `bits` bits.
void place(char* plane, int bits, int64_t depth, int64_t column, int64_t k, int code) {
  const int64_t columns = columns_apart(bits, depth), bytes = 32 * bits / 8 / columns;
  const int64_t bit = column / columns * bits;
  plane[(column % columns * depth + k) * bytes + bit / 8] |= (char)(code << bit % 8);
}

int code_at(const Weight& weight, bool in_pairs, int64_t k, int64_t output) {
  if (in_pairs) return (uint8_t)weight.data[k / 2 * weight.outputs + output] >> (4 * (k % 2)) & 15;
  const int offset = weight.codes == Codes::INT8 && weight.rounds_rows() ? weight.form().zero : 0;
  return (uint8_t)(weight.data[k * weight.outputs + output] + offset);
}

void pack_panel(const Weight& weight, bool in_pairs, int64_t panel, char* to) {
  const int bits = weight.form().bits, low = low_bits(bits);
  const int64_t depth = weight.depth();
  std::memset(to, 0, weight.steps() * weight.step_bytes());
  for (int half = 0; half < 2; half++) {
    const int64_t first = weight.half_begin(panel, half);
    const int64_t columns = weight.half_columns(panel, half);
    for (int64_t k = 0; k < weight.inputs; k++) {
      char* step = to + k / depth * weight.step_bytes();
      for (int64_t i = 0; i < columns; i++) {
        const int code = code_at(weight, in_pairs, k, first + i);
        place(step, low, depth, half * RUN + i, k % depth, code & ((1 << low) - 1));
        if (low < bits)
          place(step + PANEL * depth * low / 8, bits - low, depth, half * RUN + i, k % depth,
                code >> low);
      }
    }
  }
}

}  // namespace

void pack_codes(Pool& pool, const Weight& weight, bool in_pairs, char* to) {
  collapse_into_large_pages(to, weight.packed_bytes());
  const int64_t panel_bytes = weight.steps() * weight.step_bytes();
  parallel_for(pool, weight.panels(), [&](int64_t panel) {
    pack_panel(weight, in_pairs, panel, to + panel * panel_bytes);
  });
}

}  // namespace jengine
