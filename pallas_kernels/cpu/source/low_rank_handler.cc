// Matrices of low rank as a function that XLA calls.
#include "ffi.h"
#include "low_rank.h"

namespace jengine {
namespace {

void handle_low_rank(XlaPool pool, AnyBuffer x, AnyBuffer slots, AnyBuffer down, AnyBuffer up,
                     AnyBuffer ranges, AnyBuffer base, Result out) {
  require(x.dimensions().size() == 2 && down.dimensions().size() == 3 &&
              up.dimensions().size() == 3,
          "x must be [rows, inputs], the matrices have a leading axis of slots");
  const int64_t rows = dimension(x, 0), inputs = dimension(x, 1);
  const int64_t count = dimension(down, 0), rank = dimension(down, 1);
  const int64_t outputs = dimension(up, 2);
  require(dimension(down, 2) == inputs, "down must be [slots, rank, inputs]");
  require(dimension(up, 0) == count && dimension(up, 1) == rank, "up must be [slots, rank, outputs]");
  require(number_of(down) == number_of(up), "both matrices have one type");
  require((int64_t)slots.element_count() == rows, "every row names its slot");
  const int64_t blocks = (outputs + LOW_RANK_COLUMNS - 1) / LOW_RANK_COLUMNS;
  require(!is_given(ranges) || (int64_t)ranges.element_count() == 2 * blocks, "ranges of columns");
  const int32_t* given = is_given(ranges) ? integers_of(ranges) : nullptr;
  for (int64_t i = 0; given && i < 2 * blocks; i++)
    require(given[i] >= 0 && given[i] <= rank, "a range is beyond the ranks");
  require(dimension(*out, 0) == rows && dimension(*out, 1) == outputs, "wrong result shape");
  require(out->element_type() == DataType::F32, "the result must be float32");
  multiply_low_rank(pool, {bytes_of(x), is_bfloat16(x), rows, inputs, rank, outputs,
                           number_of(down), bytes_of(down), bytes_of(up), integers_of(slots), count,
                           given, is_given(base) ? floats_of(base, rows * outputs) : nullptr,
                           static_cast<float*>(out->untyped_data())});
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(low_rank, jengine::handle_low_rank)
