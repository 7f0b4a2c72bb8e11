// The one loop nest that does all multiplying: a few rows times a panel of 32 columns.
//
// A sum runs over k in one order in one register, whatever the number of rows beside it, so the
// bits of a result do not depend on the batch. Sums may be stored and loaded again in between.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "vector.h"

namespace jengine {

constexpr int PANEL = 32;  // columns
constexpr int VECTORS = PANEL / LANES;
#if defined(JENGINE_AVX512)
constexpr int MOST_ROWS = 12;  // 24 sums, 2 vectors of the panel and a row's number: 27 registers
#elif defined(JENGINE_AVX2)
constexpr int MOST_ROWS = 2;
#else
constexpr int MOST_ROWS = 2;
#endif

// The last two are codes of one byte. Of weights, INT8 says that both operands are integers.
enum class Number : int32_t { BFLOAT16 = 0, FLOAT16 = 1, FLOAT32 = 2, INT8 = 3, FP8 = 4 };
inline bool is_code(Number number) { return number == Number::INT8 || number == Number::FP8; }
inline int64_t size_of(Number number) {
  return number == Number::FLOAT32 ? 4 : is_code(number) ? 1 : 2;
}

// What the right operand holds. One step of a panel is 32 columns; the left operand has one word
// for each row and step: two bfloat16, or one float32.
struct Bfloat16 {
  using Vector = Words;
  using Converted = Bfloat16;  // of integers: the numbers that stand for them
  static constexpr bool IS_CODES = false;
  static constexpr int64_t DEPTH = 2, STEP_BYTES = 4 * PANEL;  // numbers of k in a step
  static Vector read(const char* at, int v) { return load<Words>(at + v * sizeof(Words)); }
  static Floats add(Floats sum, uint32_t left, Vector right) {
    return dot_pairs(sum, splat(left), right);
  }
};
struct Float32 {
  using Vector = Floats;
  using Converted = Float32;
  static constexpr bool IS_CODES = false;
  static constexpr int64_t DEPTH = 1, STEP_BYTES = 4 * PANEL;
  static Vector read(const char* at, int v) { return load<Floats>(at + v * sizeof(Floats)); }
  static Floats add(Floats sum, uint32_t left, Vector right) {
    return fma((Floats)splat(left), right, sum);
  }
};
struct Float16 : Float32 {
  using Converted = Float16;
  static constexpr int64_t STEP_BYTES = 2 * PANEL;
  static Vector read(const char* at, int v) {
    return from_float16(load<Halves>(at + v * sizeof(Halves)));
  }
};

// Memory to prefetch meanwhile: so many bytes from `at` for each step, at most two cache lines.
struct Ahead {
  const char* at = nullptr;
  int64_t bytes = 0;
};

// Scales of a panel's columns, [groups][32] of float32 or float16.
struct GroupScales {
  const char* data = nullptr;
  bool are_halves = false;

  explicit operator bool() const { return data; }
  GroupScales later(int64_t groups) const {
    return {data + groups * PANEL * (are_halves ? 2 : 4), are_halves};
  }
  // LANES of them, from the i-th on.
  Floats at(int64_t i) const {
    return are_halves ? from_float16(load<Halves>(data + 2 * i)) : load<Floats>(data + 4 * i);
  }
  // Those of the first group, of panels that are so many groups apart. One branch for all: with
  // more, compilers leave in memory what is scaled.
  template <int PANELS>
  void read(Floats (&to)[PANELS][VECTORS], int64_t groups) const {
    const auto each = [&](const auto& read_at) {
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) to[p][v] = read_at(p * groups * PANEL + v * LANES);
    };
    if (are_halves) return each([&](int64_t i) { return from_float16(load<Halves>(data + 2 * i)); });
    each([&](int64_t i) { return load<Floats>(data + 4 * i); });
  }
};
// How sums over groups of k of integers become a row's: sums += part * scales.
struct GroupScaling {
  GroupScales scales;         // or none: the last group goes on after this tile
  int64_t steps = INT64_MAX;  // of a group
  bool continues = false;     // sums hold the beginning of the first group, not yet scaled
};
// The part of a tile that belongs to one group of k; without scales, all of the tile.
struct Group {
  int64_t steps;
  GroupScales scales;
  bool goes_on;   // sums hold the beginning of what it sums up
  bool is_first;  // sums hold no scaled group yet
};
// The groups of a tile, which has at least one step. `fresh`: sums hold nothing yet.
struct Groups {
  int64_t left;
  bool fresh;
  GroupScaling scaling;

  Group first() const {
    return {std::min(scaling.steps, left), scaling.scales,
            !fresh && (!scaling.scales || scaling.continues), fresh || scaling.continues};
  }
  // Whether there is another one.
  bool drop_first() {
    left -= std::min(scaling.steps, left);
    fresh = false;
    scaling = {scaling.scales.later(1), scaling.steps};
    return left > 0;
  }
};
// sums [rows][32] (+)= part(row, vector) * scales. Inlined, so that parts can be in registers.
template <class Part>
__attribute__((always_inline)) inline void add_scaled(int rows, const Part& part, const Group& group,
                                                      float* __restrict sums) {
  if (group.is_first)
    for (int i = 0; i < rows * PANEL; i += LANES) store(sums + i, Floats{});
  Floats scales[1][VECTORS];
  group.scales.read(scales, 0);
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++)
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
      float* to = sums + r * PANEL + v * LANES;
      store(to, fma(part(r, v), scales[0][v], load<Floats>(to)));
    }
}

template <int ROWS>
inline void keep(const Floats (&parts)[ROWS][VECTORS], float* sums, int64_t pitch) {
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) store(sums + r * pitch + v * LANES, parts[r][v]);
}

// sums [ROWS][pitch] (+)= left * right. The left operand is [step][ROWS], or, with a STRIDE,
// [ROWS][STRIDE]: then a row's words of consecutive steps are adjacent.
template <class Kind, int ROWS, int STRIDE>
void multiply(const uint32_t* left, const char* right, int64_t steps, float* sums, int64_t pitch,
              bool fresh, Ahead ahead, GroupScaling scaling) {
  Groups groups{steps, fresh, scaling};
  do {
    const Group group = groups.first();
    Floats acc[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++)
        acc[r][v] = group.goes_on ? load<Floats>(sums + r * pitch + v * LANES) : Floats{};
    for (int64_t step = 0; step < group.steps; step++) {
      typename Kind::Vector columns[VECTORS];
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) columns[v] = Kind::read(right, v);
      if (ahead.at) {
        prefetch(ahead.at);
        if (ahead.bytes > 64) prefetch(ahead.at + ahead.bytes / 2);
        ahead.at += ahead.bytes;
      }
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        const uint32_t word = left[STRIDE ? r * STRIDE : r];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) acc[r][v] = Kind::add(acc[r][v], word, columns[v]);
      }
      left += STRIDE ? 1 : ROWS;
      right += Kind::STEP_BYTES;
    }
    if (!group.scales) return keep(acc, sums, pitch);
    add_scaled(ROWS, [&](int r, int v) { return acc[r][v]; }, group, sums);
  } while (groups.drop_first());
}

using Multiply = void (*)(const uint32_t*, const char*, int64_t, float*, int64_t, bool, Ahead,
                          GroupScaling);

// What reads the same numbers faster where few sums leave registers free.
template <class Given>
struct OfFewRows {
  using Kind = Given;
};
constexpr int MOST_FEW_ROWS = 4;

template <class Kind, int STRIDE, size_t... ROW>
constexpr std::array<Multiply, sizeof...(ROW)> multiplies(std::index_sequence<ROW...>) {
  return {multiply<std::conditional_t<(ROW < MOST_FEW_ROWS), typename OfFewRows<Kind>::Kind, Kind>,
                   ROW + 1, STRIDE>...};
}
// The kernel for a number of rows up to MOST_ROWS.
template <class Kind, int STRIDE = 0>
Multiply multiply_for(int rows) {
  static constexpr auto table =
      multiplies<Kind, STRIDE>(std::make_index_sequence<MOST_ROWS>{});
  return table[rows - 1];
}
// Compiled once, in micro_kernel.cc, as there are many.
extern template Multiply multiply_for<Bfloat16, 0>(int);
extern template Multiply multiply_for<Float16, 0>(int);
extern template Multiply multiply_for<Float32, 0>(int);

// Rows in blocks of nearly equal size, none larger than the micro kernel takes.
struct RowBlocks {
  int64_t rows, size, count;
  explicit RowBlocks(int64_t rows, int64_t most = MOST_ROWS) : rows(rows) {
    const int64_t least = (rows + most - 1) / most;
    size = least ? (rows + least - 1) / least : 1;
    count = (rows + size - 1) / size;
  }
  int64_t begin(int64_t block) const { return block * size; }
  int in(int64_t block) const {
    const int64_t left = rows - block * size;
    return (int)(left < size ? left : size);
  }
};

}  // namespace jengine
