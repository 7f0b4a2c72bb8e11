// The best tokens, sums and cuts of rows of logits as functions that XLA calls.
#include "best_tokens.h"
#include "ffi.h"
#include "logits.h"

namespace jengine {
namespace {

// About 30 passes over a row make a cut.
constexpr int64_t COMPARED_PER_NS = 8, SUMMED_PER_NS = 4, PASSES_OF_CUT = 30;

Rows rows_of(const AnyBuffer& x) {
  require(x.dimensions().size() == 2, "the operand must be [rows, width]");
  const int64_t count = dimension(x, 0), width = dimension(x, 1);
  require(width > 0, "a row cannot be empty");
  return {floats_of(x, count * width), count, width};
}

void handle_best(XlaPool pool, AnyBuffer logits, Result tokens) {
  const Rows rows = rows_of(logits);
  require(tokens->element_type() == DataType::S32, "tokens must be int32");
  require((int64_t)tokens->element_count() == rows.count, "a token for each row");
  Helpers helpers(pool, rows.count * rows.width / COMPARED_PER_NS);
  best_tokens(helpers, rows.data, rows.count, rows.width,
              static_cast<int32_t*>(tokens->untyped_data()));
}

void handle_parts(XlaPool pool, AnyBuffer x, Result out) {
  const Rows rows = rows_of(x);
  Helpers helpers(pool, rows.count * rows.width / SUMMED_PER_NS);
  softmax_parts(helpers, rows, const_cast<float*>(floats_of(*out, rows.count * 2)));
}

void handle_cut(XlaPool pool, AnyBuffer logits, AnyBuffer top_k, AnyBuffer top_p, AnyBuffer min_p,
                Result out) {
  const Rows rows = rows_of(logits);
  require((int64_t)top_k.element_count() == rows.count, "a top_k for each row");
  Helpers helpers(pool, rows.count * rows.width * PASSES_OF_CUT / SUMMED_PER_NS);
  cut_logits(helpers, rows,
             {integers_of(top_k), floats_of(top_p, rows.count), floats_of(min_p, rows.count)},
             const_cast<float*>(floats_of(*out, rows.count * rows.width)));
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(best_tokens, jengine::handle_best)
JENGINE_HANDLER(softmax_parts, jengine::handle_parts)
JENGINE_HANDLER(cut_logits, jengine::handle_cut)
