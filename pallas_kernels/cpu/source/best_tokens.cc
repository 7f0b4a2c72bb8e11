#include "best_tokens.h"

#include <cmath>

namespace jengine {
namespace {

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
};

int32_t best_of_lanes(const Best& best) {
  float highest = -INFINITY;
  int32_t token = -1;
  for (int i = 0; i < LANES; i++) {
    if (best.has_nan[i]) return -1;
    const float value = best.highest[i];
    if (value > highest || (value == highest && token >= 0 && best.index[i] < token)) {
      highest = value;
      token = best.index[i];
    }
  }
  return highest == INFINITY ? -1 : token;
}

int32_t best_token(const float* logits, int64_t vocab) {
  Best best;
  Ints at{};
  for (int i = 0; i < LANES; i++) at[i] = i;
  int64_t i = 0;
  for (; i + LANES <= vocab; i += LANES) {
    best.add(load<Floats>(logits + i), at);
    at += LANES;
  }
  if (i < vocab) {
    Floats rest = splat(-INFINITY);
    std::memcpy(&rest, logits + i, (vocab - i) * sizeof(float));
    best.add(rest, at);
  }
  return best_of_lanes(best);
}

}  // namespace

void best_tokens(Pool& pool, const float* logits, int64_t rows, int64_t vocab, int32_t* tokens) {
  parallel_for(pool, rows,
               [&](int64_t row) { tokens[row] = best_token(logits + row * vocab, vocab); });
}

}  // namespace jengine
