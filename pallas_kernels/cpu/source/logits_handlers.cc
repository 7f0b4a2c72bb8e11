// The best tokens, draws, sums and cuts of rows of logits as functions that XLA calls.
#include "best_tokens.h"
#include "draw.h"
#include "ffi.h"

namespace jengine {
namespace {

// About 30 passes over a row make a cut.
constexpr int64_t COMPARED_PER_NS = 8, SUMMED_PER_NS = 4, PASSES_OF_CUT = 30;
constexpr int64_t NS_OF_NOISE = 2;

Rows rows_of(const AnyBuffer& x) {
  require(x.dimensions().size() == 2, "the operand must be [rows, width]");
  const int64_t count = dimension(x, 0), width = dimension(x, 1);
  require(width > 0, "a row cannot be empty");
  return {floats_of(x, count * width), count, width};
}

int32_t* tokens_for(const Rows& rows, Result& tokens) {
  require(tokens->element_type() == DataType::S32, "tokens must be int32");
  require((int64_t)tokens->element_count() == rows.count, "a token for each row");
  return static_cast<int32_t*>(tokens->untyped_data());
}

// Two words for each row.
uint32_t* words_of(const AnyBuffer& buffer, int64_t rows) {
  require(buffer.element_type() == DataType::U32, "seeds and keys must be uint32");
  require((int64_t)buffer.element_count() == 2 * rows, "two words for each row");
  return static_cast<uint32_t*>(buffer.untyped_data());
}

Cuts cuts_of(const Rows& rows, const AnyBuffer& top_k, const AnyBuffer& top_p,
             const AnyBuffer& min_p) {
  require((int64_t)top_k.element_count() == rows.count, "a top_k for each row");
  return {integers_of(top_k), floats_of(top_p, rows.count), floats_of(min_p, rows.count)};
}

void handle_best(XlaPool pool, AnyBuffer logits, Result tokens) {
  const Rows rows = rows_of(logits);
  Helpers helpers(pool, rows.count * rows.width / COMPARED_PER_NS);
  best_tokens(helpers, rows.data, rows.count, rows.width, tokens_for(rows, tokens));
}

void handle_keys(AnyBuffer base, AnyBuffer seeds, AnyBuffer positions, Result out) {
  const int64_t rows = positions.element_count();
  const uint32_t *words = words_of(base, 1), *seed = words_of(seeds, rows);
  uint32_t* keys = words_of(*out, rows);
  for (int64_t r = 0; r < rows; r++) {
    const NoiseKey key = fold_in(fold_in({words[0], words[1]}, seed[2 * r]), seed[2 * r + 1]);
    const NoiseKey at = fold_in(key, (uint32_t)integers_of(positions)[r]);
    keys[2 * r] = at.first;
    keys[2 * r + 1] = at.second;
  }
}

void handle_noise(XlaPool pool, AnyBuffer keys, Result out) {
  const Rows rows = rows_of(*out);
  Helpers helpers(pool, rows.count * rows.width * NS_OF_NOISE);
  fill_noise(helpers, words_of(keys, rows.count), rows.count, rows.width,
             const_cast<float*>(rows.data));
}

void handle_draw(XlaPool pool, AnyBuffer logits, AnyBuffer keys, AnyBuffer temperature,
                 AnyBuffer top_k, AnyBuffer top_p, AnyBuffer min_p, Result tokens) {
  const Rows rows = rows_of(logits);
  Helpers helpers(pool, rows.count * rows.width * NS_OF_NOISE);
  draw_tokens(helpers,
              {rows, words_of(keys, rows.count), floats_of(temperature, rows.count),
               cuts_of(rows, top_k, top_p, min_p)},
              tokens_for(rows, tokens));
}

void handle_parts(XlaPool pool, AnyBuffer x, Result out) {
  const Rows rows = rows_of(x);
  Helpers helpers(pool, rows.count * rows.width / SUMMED_PER_NS);
  softmax_parts(helpers, rows, const_cast<float*>(floats_of(*out, rows.count * 2)));
}

void handle_cut(XlaPool pool, AnyBuffer logits, AnyBuffer top_k, AnyBuffer top_p, AnyBuffer min_p,
                Result out) {
  const Rows rows = rows_of(logits);
  Helpers helpers(pool, rows.count * rows.width * PASSES_OF_CUT / SUMMED_PER_NS);
  cut_logits(helpers, rows, cuts_of(rows, top_k, top_p, min_p),
             const_cast<float*>(floats_of(*out, rows.count * rows.width)));
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(best_tokens, jengine::handle_best)
JENGINE_HANDLER(noise_keys, jengine::handle_keys)
JENGINE_HANDLER(noise, jengine::handle_noise)
JENGINE_HANDLER(draw_tokens, jengine::handle_draw)
JENGINE_HANDLER(softmax_parts, jengine::handle_parts)
JENGINE_HANDLER(cut_logits, jengine::handle_cut)
