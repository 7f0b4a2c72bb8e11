// Choosing tokens as a function that XLA calls.
#include "best_tokens.h"
#include "ffi.h"

namespace jengine {
namespace {

constexpr int64_t NUMBERS_PER_NS = 8;

void best(XlaPool pool, AnyBuffer logits, Result tokens) {
  require(logits.dimensions().size() == 2, "logits must be [rows, vocab]");
  require(logits.element_type() == DataType::F32, "logits must be float32");
  require(tokens->element_type() == DataType::S32, "tokens must be int32");
  const int64_t rows = dimension(logits, 0), vocab = dimension(logits, 1);
  require((int64_t)tokens->element_count() == rows, "a token for each row");
  Helpers helpers(pool, rows * vocab / NUMBERS_PER_NS);
  best_tokens(helpers, static_cast<const float*>(logits.untyped_data()), rows, vocab,
              static_cast<int32_t*>(tokens->untyped_data()));
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(best_tokens, jengine::best)
