// Keys and values of a chunk in the order of the micro kernel. What unused slots hold is left out.
#pragma once

#include <initializer_list>

#include "attention.h"
#include "transpose.h"

namespace jengine {

// Where the tokens of a chunk have their keys and values; null: no query sees the token.
struct ChunkRows {
  const char* keys[CHUNK];
  const char* values[CHUNK];
};


// Copies float16 vectors as float32, and lets the rows point there.
inline void stage_as_float32(ChunkRows& rows, int64_t dim, float* to) {
  for (const char** plane : {rows.keys, rows.values})
    for (int64_t i = 0; i < CHUNK; i++, to += dim) {
      if (!plane[i]) continue;
      for (int64_t d = 0; d < dim; d += LANES) {
        const Floats values = from_float16(load_some<Halves>(plane[i] + 2 * d, dim - d));
        store_some(to + d, values, dim - d);
      }
      plane[i] = reinterpret_cast<const char*>(to);
    }
}

// Whether all numbers of a vector are finite: those of NaN and infinity have all exponent bits.
inline bool all_finite(const char* at, int64_t dim, Number number) {
  const uint32_t low = number == Number::BFLOAT16 ? 0x7f80u : 0u, high = 0x7f800000u;
  const int64_t words = dim * size_of(number) / 4;
  Ints found{};
  for (int64_t w = 0; w < words; w += LANES) {
    const Words some = load_some<Words>(at + 4 * w, words - w);
    found |= (Ints)((some & high) == high);
    if (low) found |= (Ints)((some & low) == low);
  }
  int32_t any = 0;
  for (int i = 0; i < LANES; i++) any |= found[i];
  return !any;
}

// Leaves out the values that are not finite and returns their tokens, a bit for each.
//
// A key that a query does not see counts as zero times its value, which would be NaN. So a query's
// result would depend on tokens behind it, and on those of other sequences.
inline uint64_t leave_out_nonfinite(ChunkRows& rows, int64_t dim, Number number) {
  static_assert(CHUNK == 64, "a bit for each token");
  uint64_t left_out = 0;
  for (int64_t i = 0; i < CHUNK; i++) {
    if (!rows.values[i] || all_finite(rows.values[i], dim, number)) continue;
    rows.values[i] = nullptr;
    left_out |= uint64_t{1} << i;
  }
  return left_out;
}

inline int64_t padded(int64_t dim) { return (dim + PANEL - 1) / PANEL * PANEL; }

// 16 numbers from `at`, of which only some exist, in a copy that ends with zeros.
struct ShortRun {
  alignas(4) char copy[RUN * 4];
  const char* at;
  ShortRun(const char* from, int64_t bytes, bool is_whole) : at(from) {
    if (!from || is_whole) return;
    std::memset(copy, 0, sizeof copy);
    std::memcpy(copy, from, bytes);
    at = copy;
  }
};

// The keys as two panels of 32 tokens, a step for each word of their vectors.
template <class Kind>
inline void order_keys(const ChunkRows& rows, int64_t steps, uint32_t* to) {
  for (int64_t token = 0; token < CHUNK; token += RUN)
    transpose_words(rows.keys + token, steps, to + token / PANEL * steps * PANEL + token % PANEL);
}

// The values as panels of 32 numbers of the vector, a step for each token or pair of tokens.
template <class Kind>
inline void order_values(const ChunkRows& rows, int64_t dim, uint32_t* to) {
  constexpr int64_t steps = CHUNK / Kind::DEPTH, bytes = 4 / Kind::DEPTH;
  for (int64_t d = 0; d < dim; d += RUN) {
    uint32_t* run = to + d / PANEL * steps * PANEL + d % PANEL;
    const bool is_whole = d + RUN <= dim;
    for (int64_t step = 0; step < steps; step++) {
      const char* row = rows.values[step * Kind::DEPTH];
      const ShortRun first(row ? row + d * bytes : nullptr, (dim - d) * bytes, is_whole);
      if (Kind::DEPTH == 2) {
        const char* other = rows.values[step * 2 + 1];
        const ShortRun second(other ? other + d * bytes : nullptr, (dim - d) * bytes, is_whole);
        interleave(first.at, second.at, run + step * PANEL);
      } else if (first.at) {
        std::memcpy(run + step * PANEL, first.at, RUN * 4);
      } else {
        std::memset(run + step * PANEL, 0, RUN * 4);
      }
    }
  }
}

}  // namespace jengine
