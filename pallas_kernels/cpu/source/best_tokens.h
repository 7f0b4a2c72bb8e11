// The best token of each row of logits.
#pragma once

#include <cmath>

#include "tasks.h"

namespace jengine {

// The best of what each lane has seen, and where. A later number must be higher, so the lowest index
// of equals stays.
struct Best {
  Floats highest = splat(-INFINITY);
  Ints index{}, has_nan{};

  void add(Floats logits, Ints at) {
    const Ints higher = logits > highest;
    has_nan |= logits != logits;
    highest = select(higher, logits, highest);
    index = (at & higher) | (index & ~higher);
  }
  // -1 where one was NaN or +inf, or all were -inf.
  int32_t token() const;
};

// The indices of the first vector of a row.
inline Ints first_indices() {
  Ints at{};
  for (int i = 0; i < LANES; i++) at[i] = i;
  return at;
}

// The index of the highest number, the lowest among equals; -1 where one is NaN or +inf, or all are
// -inf.
int32_t best_token(const float* logits, int64_t vocab);

// That of each of `rows` rows [vocab].
void best_tokens(Pool& pool, const float* logits, int64_t rows, int64_t vocab, int32_t* tokens);

}  // namespace jengine
