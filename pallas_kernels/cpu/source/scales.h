// Numbers that a weight's integers share: a scale, a zero or a least value for each output and group of
// inputs.
#pragma once

#include "code_forms.h"

namespace jengine {

// [panels, groups, 32 columns] of float32 or float16, or of integers, packed as a panel of single
// numbers is, that count float16 units, [panels, groups that share a unit, 32 columns].
struct Shared {
  const char* data = nullptr;  // null if the weight has none
  Number number = Number::FLOAT32;
  Codes codes = Codes::NONE;  // integers, and which
  const char* units = nullptr;

  int64_t group_bytes() const {
    return codes == Codes::NONE ? PANEL * size_of(number) : PANEL * form_of(codes).bits / 8;
  }
  // That of a weight so many panels later.
  Shared later(int64_t panels, int64_t groups, int64_t unit_groups) const {
    Shared found = *this;
    if (data) found.data += panels * groups * group_bytes();
    if (units) found.units += panels * unit_groups * PANEL * 2;
    return found;
  }
};

// weight = (code - zero) * scale, or code * scale - least.
struct Scales {
  Shared scale, zero, least;
  const float* x_scale = nullptr;  // that rows are rounded to int8 with; null: each has its own
};

// Writes what one panel's integers stand for as float32, [groups][32], and prefetches those of the panel that is
// `soon` later. A unit is that of `per_unit` groups.
void widen(const Shared& given, int64_t groups, int64_t per_unit, int64_t soon, float* to);

}  // namespace jengine
