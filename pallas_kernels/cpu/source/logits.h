// Sums over rows of logits, and the cuts of a sampler, which depend on such sums. A row is the work
// of one thread, and its sums run in one order, however many rows there are.
#pragma once

#include <limits>

#include "tasks.h"

namespace jengine {

struct Rows {
  const float* data;  // [count, width]
  int64_t count, width;
};

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// The next numbers of a row; those behind its end are -inf.
inline Floats some_of(const float* row, int64_t i, int64_t width) {
  if (i + LANES <= width) return load<Floats>(row + i);
  Floats found = splat(-INFINITE);
  std::memcpy(&found, row + i, (width - i) * sizeof(float));
  return found;
}

// What a softmax over each row divides by: `parts` are [count, 2], the highest number of a row and
// the sum of exp(x - highest).
void softmax_parts(Pool& pool, const Rows& rows, float* parts);

// A row's settings: off are top_k <= 0, top_p >= 1, min_p <= 0.
struct RowCut {
  int32_t top_k;
  float top_p, min_p;

  bool is_off() const { return top_k <= 0 && top_p >= 1.0f && min_p <= 0.0f; }
};
struct Cuts {
  const int32_t* top_k;
  const float *top_p, *min_p;

  RowCut of(int64_t row) const { return {top_k[row], top_p[row], min_p[row]}; }
};

// min-p, then top-k, then top-p of what is left: a token that is cut off gets -inf. Among equal
// logits the first stay.
void cut_logits(Pool& pool, const Rows& rows, const Cuts& cuts, float* to);

// That of one row, with this much memory to work in. `to` may be the row itself.
size_t cut_bytes(int64_t width);
void cut_row(const float* row, int64_t width, RowCut settings, Arena memory, float* to);

}  // namespace jengine
