#include "draw.h"

#include "best_tokens.h"

namespace jengine {
namespace {

constexpr float HIGHEST_FINITE = std::numeric_limits<float>::max();

NoiseKey key_of(const uint32_t* keys, int64_t row) { return {keys[2 * row], keys[2 * row + 1]}; }

void scale(const float* row, int64_t width, float temperature, float* to) {
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats quotient = some_of(row, i, width) / temperature;
    store_some(to + i, min(quotient, splat(HIGHEST_FINITE)), width - i);  // it can overflow
  }
}

// The token with the highest sum of logit and noise. Tokens that are too far below the highest
// logit need no noise.
int32_t best_with_noise(const float* row, int64_t width, float highest, NoiseKey key) {
  const Floats least = splat(highest - (LARGEST_NOISE - LEAST_NOISE));
  Best best;
  Ints at = first_indices();
  for (int64_t i = 0; i < width; i += LANES, at += LANES) {
    const Floats logits = some_of(row, i, width);
    if (any(logits >= least)) best.add(logits + gumbel(key, (Words)at), at);
  }
  return best.token();
}

int32_t draw_token(const Draw& call, int64_t r) {
  const int64_t width = call.logits.width;
  const float *row = call.logits.data + r * width, temperature = call.temperature[r];
  const int32_t best = best_token(row, width);
  if (best < 0 || !(temperature >= GREEDY_BELOW)) return best;
  const RowCut cut = call.cuts.of(r);
  Arena memory(task_scratch().take(Arena::bytes<float>(width) + cut_bytes(width)));
  float* scaled = memory.array<float>(width);
  scale(row, width, temperature, scaled);
  const float highest = scaled[best];
  if (!cut.is_off()) cut_row(scaled, width, cut, memory, scaled);
  return best_with_noise(scaled, width, highest, key_of(call.keys, r));
}

}  // namespace

void draw_tokens(Pool& pool, const Draw& call, int32_t* tokens) {
  parallel_for(pool, call.logits.count, [&](int64_t r) { tokens[r] = draw_token(call, r); });
}

void fill_noise(Pool& pool, const uint32_t* keys, int64_t rows, int64_t width, float* to) {
  parallel_for(pool, rows, [&](int64_t r) {
    Ints at = first_indices();
    for (int64_t i = 0; i < width; i += LANES, at += LANES)
      store_some(to + r * width + i, gumbel(key_of(keys, r), (Words)at), width - i);
  });
}

}  // namespace jengine
