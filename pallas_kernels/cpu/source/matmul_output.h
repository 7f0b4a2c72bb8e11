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
      Floats result = value(sums, i, left);
      if (out.residual) result += load_some<Floats>(out.residual + at + i, left);
      if (out.is_bfloat16) {
        store_some(out.data + (at + i) * 2, to_bfloat16(result), left);
      } else {
        store_some(out.data + (at + i) * 4, result, left);
      }
    }
  }
}

// Sums from a panel's column `at` on, with the bias of the weight's outputs from `output` on.
inline Floats with_bias(const float* sums, int64_t at, const float* bias, int64_t output,
                        int64_t left) {
  const Floats sum = load<Floats>(sums + at);
  return bias ? sum + load_some<Floats>(bias + output, std::max<int64_t>(0, left)) : sum;
}

// Bias and activation, or a gate with its number.
inline void finish(const Matmul& call, const float* bias, Block block, Columns columns,
                   const float* sums) {
  const Output& out = call.out;
  const int64_t width = call.weight.results(), first = columns.first;
  const auto plain = [&](const float* at, int64_t i, int64_t left) {
    return activated(out.activation, with_bias(at, i, bias, first + i, left));
  };
  const auto halves = [&](const float* at, int64_t i, int64_t left) {
    return activated(out.activation, with_bias(at, i, bias, first + i, left)) *
           with_bias(at, RUN + i, bias, width + first + i, left);
  };
  const auto pairs = [&](const float* at, int64_t i, int64_t left) {
    const int64_t begin = 2 * i, from = 2 * (first + i);
    const Floats low = with_bias(at, begin, bias, from, 2 * left);
    const Floats high = with_bias(at, begin + LANES, bias, from + LANES, 2 * left - LANES);
    return activated(out.activation, every_other(low, high, 0)) * every_other(low, high, 1);
  };
  switch (call.weight.gate) {
    case Gate::NONE: return write(out, width, block, columns, sums, plain);
    case Gate::HALVES: return write(out, width, block, columns, sums, halves);
    case Gate::PAIRS: return write(out, width, block, columns, sums, pairs);
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
