// Sums of a block of rows and a panel on their way to memory: bias, activation, gate and residual.
#pragma once

#include "matmul_rows.h"

namespace jengine {

// Columns of all rows of a block: the results of one panel.
struct Columns {
  int64_t first, count;
};

// Sums become results and are written, a row after the other, LANES at a time.
template <class Value>
inline void write(const Output& out, int64_t width, Block block, Columns columns,
                  const float* sums, const Value& value) {
  for (int r = 0; r < block.count; r++, sums += PANEL) {
    const int64_t at = block.rows[r] * width + columns.first;
    for (int64_t i = 0; i < columns.count; i += LANES) {
      const int64_t left = columns.count - i;
      Floats result = value(block.rows[r], sums, i, left);
      if (out.residual) result += load_some<Floats>(out.residual + at + i, left);
      if (out.is_bfloat16) {
        store_some(out.data + (at + i) * 2, to_bfloat16(result), left);
      } else {
        store_some(out.data + (at + i) * 4, result, left);
      }
    }
  }
}

// What is added to the sums of a row: a bias, which all rows share, and the row's own addend.
struct Addends {
  const float* bias;
  const float* own;

  // Sums from a panel's column `at` on, which are those of the weight's outputs from `output` on.
  Floats add(const float* sums, int64_t at, int64_t output, int64_t left) const {
    Floats sum = load<Floats>(sums + at);
    if (bias) sum += load_some<Floats>(bias + output, std::max<int64_t>(0, left));
    if (own) sum += load_some<Floats>(own + output, std::max<int64_t>(0, left));
    return sum;
  }
};

// Bias and activation, or a gate with its number.
inline void finish(const Matmul& call, const float* bias, Block block, Columns columns,
                   const float* sums) {
  const Output& out = call.out;
  const int64_t width = call.weight.results(), first = columns.first;
  const auto added = [&](int64_t row) {
    return Addends{bias, out.addend ? out.addend + row * call.weight.outputs : nullptr};
  };
  const auto plain = [&](int64_t row, const float* at, int64_t i, int64_t left) {
    return activated(out.activation, added(row).add(at, i, first + i, left));
  };
  const auto halves = [&](int64_t row, const float* at, int64_t i, int64_t left) {
    const Addends own = added(row);
    return activated(out.activation, own.add(at, i, first + i, left)) *
           own.add(at, RUN + i, width + first + i, left);
  };
  const auto pairs = [&](int64_t row, const float* at, int64_t i, int64_t left) {
    const Addends own = added(row);
    const int64_t begin = 2 * i, from = 2 * (first + i);
    const Floats low = own.add(at, begin, from, 2 * left);
    const Floats high = own.add(at, begin + LANES, from + LANES, 2 * left - LANES);
    return activated(out.activation, every_other(low, high, 0)) * every_other(low, high, 1);
  };
  switch (call.weight.gate) {
    case Gate::NONE: return write(out, width, block, columns, sums, plain);
    case Gate::HALVES: return write(out, width, block, columns, sums, halves);
    case Gate::PAIRS: return write(out, width, block, columns, sums, pairs);
  }
}

// Sums of integers become float32, by the rows' scales and the columns'. `rows` is what
// pack_rounded_rows() says of them.
inline void scale_integers(const float* rows, int count, const float* scales, float* sums) {
  for (int r = 0; r < count; r++, sums += PANEL) {
    uint32_t missing;
    std::memcpy(&missing, rows + count + r, sizeof missing);
    for (int i = 0; i < PANEL; i += LANES) {
      const Ints sum = (Ints)(load<Words>(sums + i) + missing);
      store(sums + i, __builtin_convertvector(sum, Floats) * rows[r] * load<Floats>(scales + i));
    }
  }
}

// Fetches the lines that finish() will need: each row has its own.
inline void expect(const Matmul& call, Block block, Columns columns) {
  const int64_t bytes = call.out.is_bfloat16 ? 2 : 4;
  for (int r = 0; r < block.count; r++) {
    const int64_t at = block.rows[r] * call.weight.results() + columns.first;
    for (int64_t i = 0; i < columns.count * bytes; i += 64)
      prefetch_to_write(call.out.data + at * bytes + i);
    for (int64_t i = 0; call.out.residual && i < columns.count; i += 16)
      prefetch_close(call.out.residual + at + i);
  }
}

}  // namespace jengine
