#include "best_tokens.h"

namespace jengine {

int32_t Best::token() const {
  float most = -INFINITY;
  int32_t token = -1;
  for (int i = 0; i < LANES; i++) {
    if (has_nan[i]) return -1;
    const float value = highest[i];
    if (value > most || (value == most && token >= 0 && index[i] < token)) {
      most = value;
      token = index[i];
    }
  }
  return most == INFINITY ? -1 : token;
}

int32_t best_token(const float* logits, int64_t vocab) {
  Best best;
  Ints at = first_indices();
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
  return best.token();
}

void best_tokens(Pool& pool, const float* logits, int64_t rows, int64_t vocab, int32_t* tokens) {
  parallel_for(pool, rows,
               [&](int64_t row) { tokens[row] = best_token(logits + row * vocab, vocab); });
}

}  // namespace jengine
