#include "logits.h"

#include <cmath>
#include <limits>

#include "functions.h"

namespace jengine {
namespace {

constexpr int32_t LOWEST_FINITE = -0x7f800000;  // order key of the most negative finite number
constexpr int SUMS = 4;  // vectors that are added up side by side

float highest_of(const float* row, int64_t width) {
  Floats most = splat(-INFINITE);
  for (int64_t i = 0; i < width; i += LANES) most = max(most, some_of(row, i, width));
  return largest(most);
}

// The sum of term(0), term(LANES), ... in SUMS vectors.
template <class Term>
float total_of(int64_t width, const Term& term) {
  Floats sums[SUMS] = {};
  for (int64_t i = 0; i < width; i += SUMS * LANES)
    for (int s = 0; s < SUMS; s++)
      if (i + s * LANES < width) sums[s] += term(i + s * LANES);
  return total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Integers that order like the floats, with -0 equal to 0.
Ints order_keys(Floats x) {
  const Ints bits = (Ints)(x + 0.0f);
  return bits ^ ((bits < 0) & 0x7fffffff);
}

// A row as it is searched: in whole vectors, whose lanes behind the end never count.
struct Candidates {
  int32_t* keys;
  float* weights;  // exp(x - highest), or 0
  int64_t width;

  float mass_from(int32_t threshold) const {
    return total_of(width, [&](int64_t i) {
      return select(load<Ints>(keys + i) >= threshold, load<Floats>(weights + i), Floats{});
    });
  }
  int64_t count_from(int32_t threshold) const {
    Ints counts{};
    for (int64_t i = 0; i < width; i += LANES) counts -= load<Ints>(keys + i) >= threshold;
    int64_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += counts[lane];
    return sum;
  }
  int32_t best() const {
    Ints most = load<Ints>(keys);
    for (int64_t i = LANES; i < width; i += LANES) {
      const Ints found = load<Ints>(keys + i), larger = found > most;
      most = (found & larger) | (most & ~larger);
    }
    int32_t best = most[0];
    for (int lane = 1; lane < LANES; lane++) best = std::max<int32_t>(best, most[lane]);
    return best;
  }
};

// Tokens above the threshold stay, and of those equal to it the first `room`.
struct Cut {
  int32_t threshold;
  int64_t room;
};

// The largest integer in [low, high) with at least the target at or above it, or `low`.
template <class Measure, class Target>
int32_t search(const Measure& from, Target target, int64_t low, int64_t high) {
  while (low + 1 < high) {
    const int64_t middle = (low + high) >> 1;
    const Target found = from((int32_t)middle);
    if (found == target) return (int32_t)middle;  // no other threshold keeps another set
    (found > target ? low : high) = middle;
  }
  return (int32_t)low;
}

Cut top_k(const Candidates& row, int64_t k) {
  auto count = [&](int32_t threshold) { return row.count_from(threshold); };
  const int32_t threshold = search(count, k, LOWEST_FINITE, (int64_t)row.best() + 1);
  return {threshold, k - row.count_from(threshold + 1)};
}

// The weight of a token at the threshold, 0 if there is none: equal keys have equal weights.
float weight_at(const Candidates& row, int32_t threshold) {
  for (int64_t i = 0; i < row.width; i++)
    if (row.keys[i] == threshold) return row.weights[i];
  return 0.0f;
}

// The shortest run of what `cut` leaves that reaches p of its mass; at least one token.
Cut top_p(const Candidates& row, float p, Cut cut) {
  auto mass = [&](int32_t threshold) { return row.mass_from(threshold); };
  const int64_t ties = row.count_from(cut.threshold) - row.count_from(cut.threshold + 1);
  const float left = (float)std::min(ties, cut.room) * weight_at(row, cut.threshold);
  const float target = p * (row.mass_from(cut.threshold + 1) + left);
  const int32_t threshold = search(mass, target, cut.threshold, (int64_t)row.best() + 1);
  const float missing = (target - row.mass_from(threshold + 1)) / weight_at(row, threshold);
  // Nothing is missing where p is 0, and anything may be where no weight is above 0.
  const bool some = missing > 1.0f && missing < (float)row.width;
  return {threshold, some ? (int64_t)std::ceil(missing) : missing > 1.0f ? row.width : 1};
}

void fill(const float* row, int64_t width, float min_p, const Candidates& to) {
  const Floats highest = splat(highest_of(row, width)), least = splat(std::min(min_p, 1.0f));
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats x = some_of(row, i, width), weight = exp(x - highest);
    const Ints unlikely = weight < least;
    store(to.weights + i, select(unlikely, Floats{}, weight));
    store(to.keys + i, order_keys(select(unlikely, splat(-INFINITE), x)));
  }
}

void keep(const float* row, int64_t width, const Candidates& candidates, Cut cut, float* to) {
  int64_t room = cut.room;
  for (int64_t i = 0; i < width; i++) {
    const int32_t key = candidates.keys[i];
    const bool stays = key > cut.threshold || (key == cut.threshold && room-- > 0);
    to[i] = stays ? row[i] : -INFINITE;
  }
}

int64_t whole_lanes(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

}  // namespace

size_t cut_bytes(int64_t width) {
  return Arena::bytes<int32_t>(whole_lanes(width)) + Arena::bytes<float>(whole_lanes(width));
}

void cut_row(const float* row, int64_t width, RowCut settings, Arena memory, float* to) {
  const auto [k, p, min_p] = settings;
  const int64_t whole = whole_lanes(width);
  const Candidates candidates{memory.array<int32_t>(whole), memory.array<float>(whole), whole};
  fill(row, width, min_p, candidates);
  Cut cut{LOWEST_FINITE, width};
  if (k > 0 && k < width) cut = top_k(candidates, k);
  if (p < 1.0f) cut = top_p(candidates, p, cut);
  keep(row, width, candidates, cut, to);
}

void softmax_parts(Pool& pool, const Rows& rows, float* parts) {
  parallel_for(pool, rows.count, [&](int64_t r) {
    const float* row = rows.data + r * rows.width;
    const float most = highest_of(row, rows.width);
    const Floats highest = splat(most);
    parts[2 * r] = most;
    parts[2 * r + 1] = total_of(
        rows.width, [&](int64_t i) { return exp(some_of(row, i, rows.width) - highest); });
  });
}

void cut_logits(Pool& pool, const Rows& rows, const Cuts& cuts, float* to) {
  parallel_for(pool, rows.count, [&](int64_t r) {
    const int64_t at = r * rows.width;
    const RowCut cut = cuts.of(r);
    if (cut.is_off()) {
      std::memcpy(to + at, rows.data + at, rows.width * sizeof(float));
    } else {
      const Arena memory(task_scratch().take(cut_bytes(rows.width)));
      cut_row(rows.data + at, rows.width, cut, memory, to + at);
    }
  });
}

}  // namespace jengine
