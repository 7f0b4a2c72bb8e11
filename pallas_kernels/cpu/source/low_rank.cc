#include "low_rank.h"

#include <cstring>
#include <vector>

namespace jengine {
namespace low_rank {
namespace {

constexpr int ROWS = 4, RANKS = 4, RUNS = 4;  // what the registers hold sums of
static_assert(LOW_RANK_COLUMNS % (RUNS * LANES) == 0, "columns that are summed have one range");

// Rows of one slot that are computed together, each by itself.
struct Together {
  int64_t slot;
  int count;
  int32_t rows[ROWS];
};

std::vector<Together> divided(const LowRank& call) {
  std::vector<std::vector<int32_t>> by_slot(call.num_slots);
  for (int64_t row = 0; row < call.rows; row++) {
    const int32_t slot = call.slots[row];
    if (slot > 0 && slot <= call.num_slots) {
      by_slot[slot - 1].push_back((int32_t)row);
    } else {
      float* to = call.out + row * call.outputs;
      const size_t bytes = call.outputs * sizeof(float);
      call.base ? (void)std::memcpy(to, call.base + row * call.outputs, bytes)
                : (void)std::memset(to, 0, bytes);
    }
  }
  std::vector<Together> found;
  for (int64_t slot = 0; slot < call.num_slots; slot++) {
    const std::vector<int32_t>& rows = by_slot[slot];
    for (size_t at = 0; at < rows.size(); at += ROWS) {
      Together one{slot, (int)std::min<size_t>(ROWS, rows.size() - at), {}};
      // Places that are left over repeat a row, and are not written.
      for (int r = 0; r < ROWS; r++) one.rows[r] = rows[at + std::min(r, one.count - 1)];
      found.push_back(one);
    }
  }
  return found;
}

struct AsFloat32 {
  using Bits = Floats;
  static constexpr int64_t BYTES = 4;
  static Floats of(Bits bits) { return bits; }
};
struct AsBfloat16 {
  using Bits = Halves;
  static constexpr int64_t BYTES = 2;
  static Floats of(Bits bits) { return from_bfloat16(bits); }
};
struct AsFloat16 {
  using Bits = Halves;
  static constexpr int64_t BYTES = 2;
  static Floats of(Bits bits) { return from_float16(bits); }
};

// Whole vectors are the usual case, and no call of memcpy must be in their loop.
struct Whole {
  template <class Vector>
  static Vector at(const void* from, int64_t) { return load<Vector>(from); }
};
struct Part {
  template <class Vector>
  static Vector at(const void* from, int64_t left) { return load_some<Vector>(from, left); }
};

// Some ranks of x @ down for some rows.
template <class Stored>
struct Shrink {
  const char* down[RANKS];
  const float* x[ROWS];
  int64_t ahead;  // bytes to the next ranks
  Floats sums[RANKS][ROWS] = {};

  template <class Load>
  void add(int64_t i, int64_t left) {
    Floats values[ROWS];
    for (int r = 0; r < ROWS; r++) values[r] = Load::template at<Floats>(x[r] + i, left);
    for (int k = 0; k < RANKS; k++) {
      prefetch_close(down[k] + ahead + i * Stored::BYTES);
      const Floats weight = Stored::of(
          Load::template at<typename Stored::Bits>(down[k] + i * Stored::BYTES, left));
      for (int r = 0; r < ROWS; r++) sums[k][r] = fma(values[r], weight, sums[k][r]);
    }
  }
};

// x @ down of some rows: inner[rank][row].
template <class Stored>
void shrink(const LowRank& call, const char* down, const float* const* x, float* inner) {
  const int64_t whole = call.inputs / LANES * LANES;
  for (int64_t first = 0; first < call.rank; first += RANKS) {
    Shrink<Stored> part;
    for (int k = 0; k < RANKS; k++)
      part.down[k] = down + std::min(first + k, call.rank - 1) * call.inputs * Stored::BYTES;
    for (int r = 0; r < ROWS; r++) part.x[r] = x[r];
    part.ahead = RANKS * call.inputs * Stored::BYTES;
    for (int64_t i = 0; i < whole; i += LANES) part.template add<Whole>(i, LANES);
    if (whole < call.inputs) part.template add<Part>(whole, call.inputs - whole);
    const int64_t count = std::min<int64_t>(RANKS, call.rank - first);
    for (int64_t k = 0; k < count; k++)
      for (int r = 0; r < ROWS; r++) inner[(first + k) * ROWS + r] = total(part.sums[k][r]);
  }
}

// Some columns of inner @ up, written to the rows of the result.
template <class Stored, class Load>
void expand_columns(const LowRank& call, const char* up, const float* inner, const Together& rows,
                    int64_t first) {
  Floats sums[ROWS][RUNS] = {};
  const int32_t* range = call.ranges ? call.ranges + first / LOW_RANK_COLUMNS * 2 : nullptr;
  const int64_t end = range ? range[1] : call.rank;
  for (int64_t k = range ? range[0] : 0; k < end; k++) {
    const char* from = up + (k * call.outputs + first) * Stored::BYTES;
    // The next columns of a rank: it is too far from this one for the processor to fetch it itself.
    for (int64_t ahead = 0; ahead < RUNS * LANES * Stored::BYTES; ahead += 64)
      prefetch_close(from + RUNS * LANES * Stored::BYTES + ahead);
    Floats weights[RUNS];
    for (int v = 0; v < RUNS; v++)
      weights[v] = Stored::of(Load::template at<typename Stored::Bits>(
          from + v * LANES * Stored::BYTES, call.outputs - first - v * LANES));
    for (int r = 0; r < ROWS; r++) {
      const Floats value = splat(inner[k * ROWS + r]);
      for (int v = 0; v < RUNS; v++) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
  }
  for (int r = 0; r < rows.count; r++) {
    const int64_t at = rows.rows[r] * call.outputs + first;
    for (int v = 0; v < RUNS && first + v * LANES < call.outputs; v++) {
      const int64_t left = call.outputs - first - v * LANES;
      Floats sum = sums[r][v];
      if (call.base) sum = load_some<Floats>(call.base + at + v * LANES, left) + sum;
      store_some(call.out + at + v * LANES, sum, left);
    }
  }
}

template <class Stored>
void expand(const LowRank& call, const char* up, const float* inner, const Together& rows) {
  constexpr int64_t WIDTH = RUNS * LANES;
  const int64_t whole = call.outputs / WIDTH * WIDTH;
  for (int64_t first = 0; first < whole; first += WIDTH)
    expand_columns<Stored, Whole>(call, up, inner, rows, first);
  if (whole < call.outputs) expand_columns<Stored, Part>(call, up, inner, rows, whole);
}

template <class Stored>
void run(const LowRank& call, const Together& rows) {
  const size_t copied = call.is_bfloat16 ? ROWS * call.inputs : 0;
  Arena arena(task_scratch().take(Arena::bytes<float>(copied) +
                                  Arena::bytes<float>(call.rank * ROWS)));
  float* copies = arena.array<float>(copied);
  float* inner = arena.array<float>(call.rank * ROWS);
  const float* x[ROWS];
  for (int r = 0; r < ROWS; r++) {
    const int64_t at = rows.rows[r] * call.inputs;
    x[r] = reinterpret_cast<const float*>(call.x) + at;
    if (!call.is_bfloat16) continue;
    to_floats(call.x + at * 2, Number::BFLOAT16, call.inputs, 0.0f, copies + r * call.inputs);
    x[r] = copies + r * call.inputs;
  }
  const int64_t slot = rows.slot * call.rank * Stored::BYTES;
  shrink<Stored>(call, call.down + slot * call.inputs, x, inner);
  expand<Stored>(call, call.up + slot * call.outputs, inner, rows);
}

// About how long one thread takes, in nanoseconds.
int64_t duration(const LowRank& call, int64_t tasks) {
  constexpr int64_t MULTIPLY_ADDS_PER_NS = 40;
  return tasks * ROWS * call.rank * (call.inputs + call.outputs) / MULTIPLY_ADDS_PER_NS;
}

}  // namespace
}  // namespace low_rank

void multiply_low_rank(Pool& pool, const LowRank& call) {
  using namespace low_rank;
  const std::vector<Together> tasks = divided(call);
  Helpers helpers(pool, low_rank::duration(call, (int64_t)tasks.size()));
  parallel_for(helpers, (int64_t)tasks.size(), [&](int64_t i) {
    switch (call.number) {
      case Number::BFLOAT16: return low_rank::run<AsBfloat16>(call, tasks[i]);
      case Number::FLOAT16: return low_rank::run<AsFloat16>(call, tasks[i]);
      default: return low_rank::run<AsFloat32>(call, tasks[i]);
    }
  });
}

}  // namespace jengine
