// Weights as the matmul reads them: panels of 32 columns, one step of k after the other.
//
// Packed weights are stored so. Others are brought into this form tile by tile, which gives the
// same bits without a second copy of the weight.
#pragma once

#include "scales.h"
#include "tasks.h"
#include "tile_kernel.h"
#include "transpose.h"

namespace jengine {

enum class Storage : int32_t {
  PACKED = 0,         // [panels, steps, 32 columns, numbers in a step]
  INPUTS_FIRST = 1,   // [inputs, outputs]
  OUTPUTS_FIRST = 2,  // [outputs, inputs]
};

// Where the outputs are gates and what they multiply, a panel holds 16 of each, so that a gate and
// its number are in registers at the same time.
enum class Gate : int32_t {
  NONE = 0,
  HALVES = 1,  // all gates, then what they multiply
  PAIRS = 2,   // a gate, what it multiplies, the next gate: a panel's columns are those of the weight
};

struct Weight {
  const char* data;
  Number number;  // of integers: those they are converted into; INT8: rows are rounded instead
  Storage storage;
  int64_t inputs, outputs;
  Gate gate;
  Codes codes = Codes::NONE;  // what a packed weight holds instead of numbers
  int64_t group = 0;          // inputs that share a scale
  int64_t unit = 0;           // inputs whose scales count one unit, if scales are integers
  Scales scales = {};

  int64_t number_bytes() const { return size_of(number); }
  // Whether rows meet it in matrix tiles.
  bool in_tiles() const {
    return (number == Number::BFLOAT16 || rounds_rows()) && may_use_tiles();
  }
  bool rounds_rows() const { return number == Number::INT8; }
  CodeForm form() const { return form_of(codes); }
  int64_t depth() const {  // numbers of k in a step
    return number == Number::BFLOAT16 ? 2 : rounds_rows() ? 4 : 1;
  }
  int64_t steps() const { return (inputs + depth() - 1) / depth(); }
  int64_t step_bytes() const {
    return PANEL * depth() * (codes == Codes::NONE ? 8 * number_bytes() : form().bits) / 8;
  }
  int64_t group_steps() const { return (group + depth() - 1) / depth(); }
  int64_t scale_groups() const { return (inputs + group - 1) / group; }
  int64_t unit_groups() const { return unit ? (inputs + unit - 1) / unit : 0; }
  int64_t groups_of_unit() const { return unit ? unit / group : 1; }
  // Whether weight = code * scale + an offset of a group, for codes as kernels convert them.
  bool has_offsets() const {
    return scales.zero.data || scales.least.data || form().zero != form().middle();
  }
  // What the panels from `first` on share.
  Scales later(const Scales& given, int64_t first) const {
    const auto later = [&](const Shared& one) {
      return one.later(first, scale_groups(), unit_groups());
    };
    return {later(given.scale), later(given.zero), later(given.least), given.x_scale};
  }
  bool gated() const { return gate != Gate::NONE; }
  int64_t results() const { return gated() ? outputs / 2 : outputs; }
  int64_t results_in_panel() const { return gated() ? PANEL / 2 : PANEL; }
  int64_t panels() const { return (results() + results_in_panel() - 1) / results_in_panel(); }
  int64_t packed_bytes() const { return panels() * steps() * step_bytes(); }
  int64_t bytes() const {
    return storage == Storage::PACKED ? packed_bytes() : inputs * outputs * number_bytes();
  }

  const char* packed_tile(int64_t panel, int64_t step) const {
    return data + (panel * steps() + step) * step_bytes();
  }
  // The first column of a panel's half, and how many of its 16 columns there are.
  int64_t half_begin(int64_t panel, int half) const {
    return gate == Gate::HALVES ? half * results() + panel * RUN : panel * PANEL + half * RUN;
  }
  int64_t half_columns(int64_t panel, int half) const {
    const int64_t end = gate == Gate::HALVES ? (half + 1) * results() : outputs;
    const int64_t left = end - half_begin(panel, half);
    return left < 0 ? 0 : left < RUN ? left : RUN;
  }
};

// Writes one panel's offsets, [groups][32], for its scales as they are read; see widen().
void write_offsets(const Weight& weight, const Scales& given, GroupScales scales, int64_t soon,
                   float* to);

// Packs a weight that is stored otherwise, panels in parallel.
void pack(Pool& pool, const Weight& weight, char* to);

// Packs integers that are stored as [inputs, outputs] of bytes, or, if `in_pairs`, with two inputs in a
// byte, the first in its lower half.
void pack_codes(Pool& pool, const Weight& weight, bool in_pairs, char* to);

// Writes the tiles of panels [first, last) for steps [step, step + steps), a panel after the other.
void fill_tiles(const Weight& weight, int64_t first, int64_t last, int64_t step, int64_t steps,
                char* tiles);

}  // namespace jengine
