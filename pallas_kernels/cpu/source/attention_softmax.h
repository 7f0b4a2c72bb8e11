// The running softmax of queries over chunks of keys, and how two such results become one.
#pragma once

#include <cmath>
#include <limits>

#include "attention.h"
#include "functions.h"
#include "micro_kernel.h"

namespace jengine {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// For some rows: the largest score so far, the sum of exp(score - largest), and the values in that
// mixture.
struct Running {
  float* largest;  // [rows]
  float* sum;      // [rows]
  float* mixed;    // [rows, width]
  int64_t width;

  static size_t floats(int64_t rows, int64_t width) { return rows * (width + 2); }
  Running(float* memory, int64_t rows, int64_t width)
      : largest(memory), sum(memory + rows), mixed(memory + 2 * rows), width(width) {}

  void clear(int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
      largest[r] = NOTHING;
      sum[r] = 0;
    }
    std::memset(mixed, 0, rows * width * sizeof(float));
  }
  void scale(int64_t row, float factor) {
    float* values = mixed + row * width;
    for (int64_t d = 0; d < width; d += LANES) store(values + d, load<Floats>(values + d) * factor);
  }
  void copy(int64_t to, const Running& other, int64_t from) {
    largest[to] = other.largest[from];
    sum[to] = other.sum[from];
    std::memcpy(mixed + to * width, other.mixed + from * width, width * sizeof(float));
  }
  // Adds what a row makes of the keys that follow.
  void merge(int64_t row, const Running& later) {
    if (later.sum[row] == 0) return;  // it sees none of them
    const float most = std::max(largest[row], later.largest[row]);
    const float ours = exp(largest[row] - most), theirs = exp(later.largest[row] - most);
    largest[row] = most;
    sum[row] = sum[row] * ours + later.sum[row] * theirs;
    float* values = mixed + row * width;
    const float* added = later.mixed + row * width;
    for (int64_t d = 0; d < width; d += LANES)
      store(values + d, load<Floats>(values + d) * ours + load<Floats>(added + d) * theirs);
  }
};

// Sees the keys [low, high) of a chunk.
struct Sight {
  int64_t low, high;
  bool none() const { return high <= low; }
  bool all() const { return low <= 0 && high >= CHUNK; }
  bool any_of(uint64_t tokens) const {
    for (int64_t i = low; tokens && i < high; i++)
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

inline void store_weights(uint16_t* to, Floats weights) { store(to, to_bfloat16(weights)); }
inline void store_weights(float* to, Floats weights) { store(to, weights); }

// Turns a row's scores of a chunk into weights and takes them into its running sum. What the row
// has mixed so far is scaled where a larger score appears.
template <class Weight>
inline void weigh(const Attention& call, const float* scores, Sight sight, Running& running,
                  int64_t row, Weight* weights) {
  if (sight.none()) {
    std::memset(weights, 0, CHUNK * sizeof(Weight));
    return;
  }
  constexpr int parts = CHUNK / LANES;
  Floats score[parts];
  for (int i = 0; i < parts; i++) score[i] = load<Floats>(scores + i * LANES) * splat(call.scale);
  if (call.soft_cap > 0)
    for (int i = 0; i < parts; i++) score[i] = call.soft_cap * tanh(score[i] / call.soft_cap);
  if (!sight.all())
    for (int i = 0; i < parts; i++)
      score[i] = select(sight.seen(i * LANES), score[i], splat(NOTHING));
  Floats most = splat(running.largest[row]);
  for (int i = 0; i < parts; i++) most = max(score[i], most);
  const float before = running.largest[row], after = largest(most);
  Floats sum{};
  for (int i = 0; i < parts; i++) {
    const Floats weight = exp_up_to_88(score[i] - splat(after));
    sum += weight;
    store_weights(weights + i * LANES, weight);
  }
  float factor = 1.0f;
  if (after != before) {
    factor = exp(before - after);
    running.largest[row] = after;
    running.scale(row, factor);
  }
  running.sum[row] = running.sum[row] * factor + total(sum);
}

}  // namespace jengine
