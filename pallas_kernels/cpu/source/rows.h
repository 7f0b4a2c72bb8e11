// The left operand of a matmul: rows of activations, normalised, in the numbers of the weight.
#pragma once

#include "tasks.h"
#include "weights.h"

namespace jengine {

enum class NormKind : int32_t { NONE = 0, RMS = 1, LAYER = 2 };

struct Norm {
  NormKind kind;
  const float* weight;  // [width]
  const float* bias;    // [width] or null
  float eps;
};

// Numbers of any type as float32, with `offset` added.
void to_floats(const char* from, Number number, int64_t count, float offset, float* to);

// values / rms(values) * weight, or, for a layer norm, the same of values minus their mean, plus a
// bias. In place; sums run in one order, whatever row it is.
void normalize(float* values, int64_t width, const Norm& norm);

struct Activations {
  const char* data;  // [rows, width]
  bool is_bfloat16;  // else float32
  int64_t width;
  Norm norm;

  // Writes the row as float32, normalised.
  void read(int64_t row, float* to) const;
};

// Writes the rows that are listed as float32, normalised, each where it was.
void normalize_rows(Pool& pool, const Activations& x, const int32_t* rows, int64_t count,
                    float* to);

// Writes rows as [step][rows] words for the micro kernel, or for tiles as [step / 16][rows][16] with
// zeros behind the last step.
void pack_rows(const Activations& x, const int32_t* rows, int count, Number number, bool in_tiles,
               uint32_t* to);

// The same of rows rounded to int8, four numbers to a word. `sums` receives the rows' scales, and
// then, as the bits of integers, what sums with codes around `middle` are too small by. `given` is the
// scale of all rows; without it, each has the one that its largest number needs.
void pack_rounded_rows(const Activations& x, const int32_t* rows, int count, const float* given,
                       uint32_t middle, bool in_tiles, uint32_t* to, float* sums);

// The sums of the rows' groups of `size` steps, each in one order, as [group][rows] for each of the
// blocks that the micro kernel of registers takes.
void sum_groups(const uint32_t* words, int count, bool in_tiles, int64_t steps, int64_t size,
                Number number, float* to);

}  // namespace jengine
