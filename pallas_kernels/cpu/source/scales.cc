#include "scales.h"

#include "codes.h"
#include "rows.h"
#include "weights.h"

namespace jengine {
namespace {

// Codes as what they stand for, times their unit. `more`: those converted are around the middle code.
template <class Kind>
void widen_codes(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon,
                 float* to) {
  const CodeForm form = form_of(given.codes);
  const float more = (float)(form.middle() - form.zero);
  const char *codes = given.data, *units = given.units;
  for (int64_t g = 0; g < groups; units += PANEL * sizeof(uint16_t)) {
    Floats unit[VECTORS];
    for (int v = 0; v < VECTORS; v++)
      unit[v] = from_float16(load<Halves>(units + v * sizeof(Halves)));
    prefetch(units + soon * groups / per_unit * PANEL * sizeof(uint16_t));
    for (const int64_t end = std::min(groups, g + per_unit); g < end; g++) {
      prefetch(codes + soon * groups * Kind::STEP_BYTES);
      for (int v = 0; v < VECTORS; v++, to += LANES)
        store(to, (Kind::read(codes, v) + more) * unit[v]);
      codes += Kind::STEP_BYTES;
    }
  }
}

}  // namespace

void widen(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon, float* to) {
  switch (form_of(given.codes).around) {
    case Codes::NONE:
      for (int64_t i = 0; i < groups * given.group_bytes(); i += 64)
        prefetch(given.data + soon * groups * given.group_bytes() + i);
      return to_floats(given.data, given.number, groups * PANEL, 0.0f, to);
    case Codes::INT4: return widen_codes<CodeSingles<Codes::INT4>>(given, groups, per_unit, soon, to);
    case Codes::INT6: return widen_codes<CodeSingles<Codes::INT6>>(given, groups, per_unit, soon, to);
    default: return widen_codes<Int8Singles>(given, groups, per_unit, soon, to);
  }
}

void write_offsets(const Weight& weight, const Scales& given, const float* scales, int64_t soon,
                   float* to) {
  const int64_t groups = weight.scale_groups(), count = groups * PANEL;
  const bool has_zeros = given.zero.data != nullptr;
  const Shared& stored = has_zeros ? given.zero : given.least;
  if (stored.data)
    widen(stored, groups, weight.groups_of_unit(), soon, to);
  else
    std::fill(to, to + count, 0.0f);
  // What is stored is in scales, or in numbers of the weight.
  const float more = (float)(weight.form().middle() - weight.form().zero);
  for (int64_t i = 0; i < count; i += LANES) {
    const Floats scale = load<Floats>(scales + i), one = load<Floats>(to + i);
    store(to + i, has_zeros ? (more - one) * scale : more * scale - one);
  }
}

}  // namespace jengine
