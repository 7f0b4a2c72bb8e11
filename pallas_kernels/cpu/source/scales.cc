#include "scales.h"

#include "codes.h"
#include "rows.h"
#include "weights.h"

namespace jengine {
namespace {

// A byte for each column of a panel.
typedef uint64_t StepBytes __attribute__((vector_size(PANEL)));

// The codes of a step of single numbers. Columns so many apart share a byte: shifted by their place in
// it, four copies of the bytes have every column's bits at the bottom of a byte of its own.
template <int BITS>
StepBytes codes_of_step(const char* at) {
  constexpr uint64_t EACH = 0x0101010101010101;
  if constexpr (BITS == 8) return load<StepBytes>(at);
  const auto first = load<uint64_t>(at), second = load<uint64_t>(at + 8);
  const StepBytes low = StepBytes{first, second, first, second} >> StepBytes{0, 0, 4, 4} & 15 * EACH;
  if constexpr (BITS == 4) return low;
  const auto both = load<uint64_t>(at + 16);
  const StepBytes high = StepBytes{both, both, both, both} >> StepBytes{0, 2, 4, 6};
  return low | (high << 4 & 48 * EACH);
}

// Calls each(i, numbers) with what codes stand for, times their unit: LANES numbers from the i-th on.
template <int BITS, class Each>
void widen_codes(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon,
                 const Each& each) {
  constexpr int64_t STEP_BYTES = PANEL * BITS / 8;
  const float zero = (float)form_of(given.codes).zero;
  const char *codes = given.data, *units = given.units;
  for (int64_t g = 0; g < groups; units += PANEL * sizeof(uint16_t)) {
    Floats unit[VECTORS];
    for (int v = 0; v < VECTORS; v++)
      unit[v] = from_float16(load<Halves>(units + v * sizeof(Halves)));
    prefetch(units + soon * groups / per_unit * PANEL * sizeof(uint16_t));
    for (const int64_t end = std::min(groups, g + per_unit); g < end; g++) {
      prefetch(codes + soon * groups * STEP_BYTES);
      char bytes[PANEL];
      store(bytes, codes_of_step<BITS>(codes));
      for (int v = 0; v < VECTORS; v++) {
        const Ints integers = from_bytes(bytes + v * LANES);  // of 8 bits: signed
        each(g * PANEL + v * LANES, (from_integers(integers) - (BITS == 8 ? 0 : zero)) * unit[v]);
      }
      codes += STEP_BYTES;
    }
  }
}

template <class Each>
void widen_each(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon,
                const Each& each) {
  switch (form_of(given.codes).bits) {
    case 0: {
      const int64_t bytes = groups * given.group_bytes(), size = size_of(given.number);
      for (int64_t i = 0; i < bytes; i += 64) prefetch(given.data + soon * bytes + i);
      for (int64_t i = 0; i < groups * PANEL; i += LANES) {
        const char* at = given.data + i * size;
        each(i, size == 4 ? load<Floats>(at) : from_float16(load<Halves>(at)));
      }
      return;
    }
    case 4: return widen_codes<4>(given, groups, per_unit, soon, each);
    case 6: return widen_codes<6>(given, groups, per_unit, soon, each);
    default: return widen_codes<8>(given, groups, per_unit, soon, each);
  }
}

}  // namespace

void widen(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon, float* to) {
  widen_each(given, groups, per_unit, soon, [&](int64_t i, Floats one) { store(to + i, one); });
}

void write_offsets(const Weight& weight, const Scales& given, GroupScales scales, int64_t soon,
                   float* to) {
  const int64_t groups = weight.scale_groups(), per_unit = weight.groups_of_unit();
  // What is stored is in scales, or in numbers of the weight.
  const Floats more = splat((float)(weight.form().middle() - weight.form().zero));
  if (given.zero.data)
    return widen_each(given.zero, groups, per_unit, soon, [&](int64_t i, Floats zero) {
      store(to + i, (more - zero) * scales.at(i));
    });
  if (given.least.data)
    return widen_each(given.least, groups, per_unit, soon, [&](int64_t i, Floats least) {
      store(to + i, more * scales.at(i) - least);
    });
  for (int64_t i = 0; i < groups * PANEL; i += LANES) store(to + i, more * scales.at(i));
}

}  // namespace jengine
