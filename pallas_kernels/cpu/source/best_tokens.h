// The best token of each row of logits.
#pragma once

#include "tasks.h"

namespace jengine {

// For each of `rows` rows [vocab]: the index of the highest number, the lowest among equals; -1
// where one is NaN or +inf, or all are -inf.
void best_tokens(Pool& pool, const float* logits, int64_t rows, int64_t vocab, int32_t* tokens);

}  // namespace jengine
