// Sums over rows of logits, and the cuts of a sampler, which depend on such sums. A row is the work
// of one thread, and its sums run in one order, however many rows there are.
#pragma once

#include "tasks.h"

namespace jengine {

struct Rows {
  const float* data;  // [count, width]
  int64_t count, width;
};

// What a softmax over each row divides by: `parts` are [count, 2], the highest number of a row and
// the sum of exp(x - highest).
void softmax_parts(Pool& pool, const Rows& rows, float* parts);

// A row's settings: off are top_k <= 0, top_p >= 1, min_p <= 0.
struct Cuts {
  const int32_t* top_k;
  const float *top_p, *min_p;
};

// min-p, then top-k, then top-p of what is left: a token that is cut off gets -inf. Among equal
// logits the first stay.
void cut_logits(Pool& pool, const Rows& rows, const Cuts& cuts, float* to);

}  // namespace jengine
