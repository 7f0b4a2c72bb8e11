#include "codes.h"

#include "large_pages.h"
#include "weights.h"

namespace jengine {
namespace {

// Where one of a step's codes is.
struct Place {
  int64_t byte;
  int shift;
};

Place place_of(const Weight& weight, int64_t column, int64_t k) {
  if (weight.codes == Codes::INT8) return {column * weight.depth() + k, 0};
  if (weight.depth() != 2) return {column % 16 * weight.depth() + k, (int)(4 * (column / 16))};
  const int64_t part = column / 8;  // of 16 bits, whose first two are in the first byte
  return {(column % 8 * 2 + k) * 2 + part / 2, (int)(4 * (part % 2))};
}

uint8_t code_at(const Weight& weight, int64_t k, int64_t output) {
  if (weight.codes == Codes::INT8) {
    const int offset = weight.rounds_rows() ? weight.middle() : 0;
    return (uint8_t)(weight.data[k * weight.outputs + output] + offset);
  }
  return (uint8_t)weight.data[k / 2 * weight.outputs + output] >> (4 * (k % 2)) & 15;
}

void pack_panel(const Weight& weight, int64_t panel, char* to) {
  std::memset(to, 0, weight.steps() * weight.step_bytes());
  for (int half = 0; half < 2; half++) {
    const int64_t first = weight.half_begin(panel, half);
    const int64_t columns = weight.half_columns(panel, half);
    for (int64_t k = 0; k < weight.inputs; k++) {
      char* step = to + k / weight.depth() * weight.step_bytes();
      for (int64_t i = 0; i < columns; i++) {
        const Place place = place_of(weight, half * RUN + i, k % weight.depth());
        step[place.byte] |= (char)(code_at(weight, k, first + i) << place.shift);
      }
    }
  }
}

}  // namespace

void pack_codes(Pool& pool, const Weight& weight, char* to) {
  collapse_into_large_pages(to, weight.packed_bytes());
  const int64_t panel_bytes = weight.steps() * weight.step_bytes();
  parallel_for(pool, weight.panels(), [&](int64_t panel) {
    pack_panel(weight, panel, to + panel * panel_bytes);
  });
}

}  // namespace jengine
