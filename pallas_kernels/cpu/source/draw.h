// Tokens drawn from rows of logits. What is drawn depends on a row's logits, settings and key alone.
#pragma once

#include "logits.h"
#include "noise.h"

namespace jengine {

struct Draw {
  Rows logits;
  const uint32_t* keys;      // [rows, 2]
  const float* temperature;  // [rows]; below GREEDY_BELOW: the best token, whatever the cuts
  Cuts cuts;
};

constexpr float GREEDY_BELOW = 1e-5f;

// For each row, the token with the highest sum of logit / temperature, as far as the cuts leave it,
// and noise; -1 where a logit is NaN or +inf, or all are -inf.
void draw_tokens(Pool& pool, const Draw& call, int32_t* tokens);

// The noise of each row [width].
void fill_noise(Pool& pool, const uint32_t* keys, int64_t rows, int64_t width, float* to);

}  // namespace jengine
