// Weights as the matmul reads them: panels of 32 columns, one step of k after the other.
//
// Packed weights are stored so. Others are brought into this form tile by tile, which gives the
// same bits without a second copy of the weight.
#pragma once

#include "tasks.h"
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

// What a packed weight holds: numbers, or integers of few bits. Those stand for
// (integer - zero) * scale, with a scale and a zero for each output and group of inputs.
enum class Codes : int32_t { NONE = 0, INT8 = 1, INT4 = 2 };

struct Scales {
  const float* scales = nullptr;  // [panels, groups of inputs, 32 columns]
  const float* zeros = nullptr;   // of the same shape, or null
  const float* x_scale = nullptr;  // that rows are rounded to int8 with; null: each has its own
};

struct Weight {
  const char* data;
  Number number;  // of integers: those they are converted into; INT8: rows are rounded instead
  Storage storage;
  int64_t inputs, outputs;
  Gate gate;
  Codes codes = Codes::NONE;
  int64_t group = 0;  // inputs that share a scale
  Scales scales = {};

  int64_t number_bytes() const { return size_of(number); }
  bool rounds_rows() const { return number == Number::INT8; }
  uint32_t middle() const { return codes == Codes::INT4 ? 8 : 128; }  // the unsigned code of zero
  int64_t depth() const {  // numbers of k in a step
    return number == Number::BFLOAT16 ? 2 : rounds_rows() ? 4 : 1;
  }
  int64_t steps() const { return (inputs + depth() - 1) / depth(); }
  int64_t step_bytes() const {
    return codes == Codes::NONE ? PANEL * number_bytes() * depth()
                                : PANEL * depth() / (codes == Codes::INT4 ? 2 : 1);
  }
  int64_t group_steps() const { return (group + depth() - 1) / depth(); }
  int64_t scale_groups() const { return (inputs + group - 1) / group; }
  int64_t scale_count() const { return panels() * scale_groups() * PANEL; }
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

// Packs a weight that is stored otherwise, panels in parallel.
void pack(Pool& pool, const Weight& weight, char* to);

// Packs integers that are stored as [inputs, outputs], or, of 4 bits, as pairs of inputs in a byte,
// the first in its lower half.
void pack_codes(Pool& pool, const Weight& weight, char* to);

// Writes the tiles of panels [first, last) for steps [step, step + steps), a panel after the other.
void fill_tiles(const Weight& weight, int64_t first, int64_t last, int64_t step, int64_t steps,
                char* tiles);

}  // namespace jengine
