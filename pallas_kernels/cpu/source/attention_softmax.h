// The running softmax of queries over chunks of keys, and how two such results become one.
//
// Scores are taken times log2(e), so that weights are powers of two.
#pragma once

#include <cmath>
#include <limits>

#include "attention.h"
#include "functions.h"
#include "micro_kernel.h"

namespace jengine {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
// The reference of a row's weights is its largest score, or one that is smaller by less than this.
// So the reference seldom rises, and weights stay far from overflow.
constexpr float LEEWAY = 8.0f;

// For some rows: the reference of their weights, the sums of weights by lane, and the values in that
// mixture.
struct Running {
  float* mixed;      // [rows, width]
  float* sums;       // [rows, LANES]
  float* reference;  // [rows]; NOTHING where no key was seen
  int64_t width;

  static size_t floats(int64_t rows, int64_t width) {
    return (rows * (width + LANES + 1) + LANES - 1) / LANES * LANES;
  }
  Running(float* memory, int64_t rows, int64_t width)
      : mixed(memory), sums(mixed + rows * width), reference(sums + rows * LANES), width(width) {}

  void clear(int64_t rows) {
    std::memset(mixed, 0, rows * (width + LANES) * sizeof(float));
    std::fill_n(reference, rows, NOTHING);
  }
  void raise(int64_t row, float to) {
    const float before = reference[row];
    reference[row] = to;
    if (before == NOTHING) return;  // there is nothing yet
    const Floats factor = exp2<true>(splat(before - to));
    store(sums + row * LANES, load<Floats>(sums + row * LANES) * factor);
    float* values = mixed + row * width;
    for (int64_t d = 0; d < width; d += LANES) store(values + d, load<Floats>(values + d) * factor);
  }
  void copy(int64_t to, const Running& other, int64_t from) {
    reference[to] = other.reference[from];
    std::memcpy(sums + to * LANES, other.sums + from * LANES, LANES * sizeof(float));
    std::memcpy(mixed + to * width, other.mixed + from * width, width * sizeof(float));
  }
  // Adds what a row makes of the keys that follow.
  void merge(int64_t row, const Running& later, int64_t later_row) {
    if (later.reference[later_row] == NOTHING) return;  // it sees none of them
    if (reference[row] == NOTHING) return copy(row, later, later_row);
    const float most = std::max(reference[row], later.reference[later_row]);
    const Floats ours = exp2<true>(splat(reference[row] - most));
    const Floats theirs = exp2<true>(splat(later.reference[later_row] - most));
    reference[row] = most;
    add(sums + row * LANES, ours, later.sums + later_row * LANES, theirs, LANES);
    add(mixed + row * width, ours, later.mixed + later_row * width, theirs, width);
  }

 private:
  static void add(float* to, Floats ours, const float* later, Floats theirs, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES)
      store(to + i, load<Floats>(to + i) * ours + load<Floats>(later + i) * theirs);
  }
};

// Sees the keys [low, high) of a chunk.
struct Sight {
  int64_t low, high;
  bool none() const { return high <= low || high <= 0 || low >= CHUNK; }
  bool all() const { return low <= 0 && high >= CHUNK; }
  bool any_of(uint64_t tokens) const {
    for (int64_t i = std::max<int64_t>(low, 0); tokens && i < std::min(high, CHUNK); i++)
      if (tokens >> i & 1) return true;
    return false;
  }
  // Whether each of the keys from `first` on is seen, as a mask.
  Ints seen(int64_t first) const {
    static constexpr int32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Ints key = load<Ints>(lanes) + (int32_t)first;
    return (key >= (int32_t)low) & (key < (int32_t)high);
  }
};

// How scores become the numbers whose powers of two are weights.
struct Scaling {
  float scale, soft_cap;
  explicit Scaling(const Attention& call)
      : scale(call.soft_cap > 0 ? call.scale / call.soft_cap : call.scale * LOG2_E),
        soft_cap(call.soft_cap * LOG2_E) {}
  Floats operator()(Floats score) const {
    score = score * scale;
    return soft_cap > 0 ? soft_cap * tanh(score) : score;
  }
};

inline void store_weights(uint16_t* to, Floats weights) { store(to, to_bfloat16(weights)); }
inline void store_weights(float* to, Floats weights) { store(to, weights); }

// Turns a row's scores of a chunk into weights, and takes them into its running sums.
template <class Weight>
inline void weigh(const Scaling& scaling, const float* scores, Sight sight, Running& running,
                  int64_t row, Weight* weights) {
  if (sight.none()) {
    std::memset(weights, 0, CHUNK * sizeof(Weight));
    return;
  }
  constexpr int parts = CHUNK / LANES;
  Floats score[parts];
  for (int i = 0; i < parts; i++) score[i] = scaling(load<Floats>(scores + i * LANES));
  if (!sight.all())
    for (int i = 0; i < parts; i++)
      score[i] = select(sight.seen(i * LANES), score[i], splat(NOTHING));
  Floats most = score[0];
  for (int i = 1; i < parts; i++) most = max(most, score[i]);
  // Not "any is above": a score that is not a number must reach the row's result.
  if (!all_up_to(most, running.reference[row] + LEEWAY)) running.raise(row, largest(most));
  const Floats reference = splat(running.reference[row]);
  float* sums = running.sums + row * LANES;
  Floats sum{};
  for (int i = 0; i < parts; i++) {
    // Weights of 16 bits do not need the last bits of a power.
    const Floats weight = exp2<sizeof(Weight) == 4>(score[i] - reference);
    sum += weight;
    store_weights(weights + i * LANES, weight);
  }
  store(sums, load<Floats>(sums) + sum);
}

}  // namespace jengine
