#include "rows.h"

#include <cmath>

#include "cache_codes.h"

namespace jengine {
namespace {

constexpr int64_t ROWS_OF_TASK = 16;
// Words between two rows, so that a power of two is not their distance: caches hold few such lines.
constexpr int64_t PADDING = 16;

float sum_of_squares(const float* values, int64_t width) {
  Floats sums{};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const Floats x = load<Floats>(values + i);
    sums = fma(x, x, sums);
  }
  float sum = total(sums);
  for (; i < width; i++) sum += values[i] * values[i];
  return sum;
}

float sum_of(const float* values, int64_t width) {
  Floats sums{};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) sums += load<Floats>(values + i);
  float sum = total(sums);
  for (; i < width; i++) sum += values[i];
  return sum;
}

// Two of so many float32 at `from` to a word, in order, as bfloat16.
void to_pairs(const char* from, int64_t width, uint32_t* words) {
  for (int64_t i = 0; i < width; i += LANES) {
    const Halves rounded = to_bfloat16(load_some<Floats>(from + 4 * i, width - i));
    store_some(reinterpret_cast<char*>(words) + 2 * i, rounded, (width + 1) / 2 * 2 - i);
  }
}

void order_rows(const uint32_t* rows, int count, int64_t pitch, int64_t words, bool in_tiles,
                uint32_t* to) {
  in_tiles ? pack_in_tiles(rows, count, pitch, words, to)
           : interleave_rows(rows, count, pitch, words, to);
}

typedef int8_t SignedBytes __attribute__((vector_size(LANES)));

// The scale by which no number is cut off; NaN if one is NaN, whose bits are the largest.
float scale_of_int8(const float* values, int64_t width) {
  constexpr float OF_LARGEST = 1.0f / 127.0f, SMALLEST_SCALE = 1e-12f;
  Ints highest{};
  for (int64_t i = 0; i < width; i += LANES) {
    const Ints size = load_some<Ints>(values + i, width - i) & 0x7fffffff;
    highest = (Ints)select((Ints)(size > highest), (Floats)size, (Floats)highest);
  }
  int32_t most = highest[0];
  for (int i = 1; i < LANES; i++) most = std::max(most, highest[i]);
  float scale;
  std::memcpy(&scale, &most, sizeof scale);
  scale *= OF_LARGEST;
  return scale < SMALLEST_SCALE ? SMALLEST_SCALE : scale;
}

// Writes a row as int8, up to a whole word, and returns its sum. NaN becomes 0. As XLA does, what has
// to be divided is multiplied by the inverse: where it ends in a half, the other bit would show.
uint32_t round_row(const float* values, int64_t width, float scale, char* to) {
  const Floats inverse = splat(1.0f / scale);
  Ints sums{};
  for (int64_t i = 0; i < width; i += LANES) {
    Floats units = load_some<Floats>(values + i, width - i) * inverse;
    units = select((Ints)(units == units), units, Floats{});
    const CodeBytes codes = to_int8(min(max(units, splat(-128.0f)), splat(127.0f)));
    sums += __builtin_convertvector((SignedBytes)codes, Ints);
    store_some(to + i, codes, (width + 3) / 4 * 4 - i);
  }
  uint32_t sum = 0;
  for (int i = 0; i < LANES; i++) sum += (uint32_t)sums[i];
  return sum;
}

}  // namespace

void normalize(float* values, int64_t width, const Norm& norm) {
  if (norm.kind == NormKind::LAYER) {
    const float mean = sum_of(values, width) / (float)width;
    for (int64_t i = 0; i < width; i++) values[i] -= mean;
  }
  const float inverse =
      1.0f / std::sqrt(sum_of_squares(values, width) / (float)width + norm.eps);
  for (int64_t i = 0; i < width; i++) values[i] = values[i] * inverse * norm.weight[i];
  if (norm.bias)
    for (int64_t i = 0; i < width; i++) values[i] += norm.bias[i];
}

void to_floats(const char* from, Number number, int64_t count, float offset, float* to) {
  const int64_t bytes = size_of(number);
  for (int64_t i = 0; i < count; i += LANES) {
    const char* at = from + i * bytes;
    Floats values = number == Number::FLOAT32    ? load_some<Floats>(at, count - i)
                    : number == Number::BFLOAT16 ? from_bfloat16(load_some<Halves>(at, count - i))
                                                 : from_float16(load_some<Halves>(at, count - i));
    if (offset != 0.0f) values += offset;
    store_some(to + i, values, count - i);
  }
}

void Activations::read(int64_t row, float* to) const {
  if (is_bfloat16) {
    to_floats(data + row * width * 2, Number::BFLOAT16, width, 0.0f, to);
  } else {
    std::memcpy(to, data + row * width * 4, width * 4);
  }
  if (norm.kind != NormKind::NONE) normalize(to, width, norm);
}

void normalize_rows(Pool& pool, const Activations& x, const int32_t* rows, int64_t count,
                    float* to) {
  const int64_t tasks = (count + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
  parallel_for(pool, tasks, [&](int64_t task) {
    const int64_t end = std::min(count, (task + 1) * ROWS_OF_TASK);
    for (int64_t i = task * ROWS_OF_TASK; i < end; i++) x.read(rows[i], to + rows[i] * x.width);
  });
}

void pack_rows(const Activations& x, const int32_t* rows, int count, Number number, bool in_tiles,
               uint32_t* to) {
  const bool paired = number == Number::BFLOAT16;
  const int64_t steps = paired ? (x.width + 1) / 2 : x.width, pitch = steps + PADDING;
  Arena memory(task_scratch().take(Arena::bytes<float>(x.width) +
                                   Arena::bytes<uint32_t>(count * pitch)));
  float* values = memory.array<float>(x.width);
  uint32_t* words = memory.array<uint32_t>(count * pitch);
  for (int r = 0; r < count; r++) {
    uint32_t* row = words + r * pitch;
    const bool as_it_is = !x.is_bfloat16 && x.norm.kind == NormKind::NONE;
    const char* at = x.data + rows[r] * x.width * 4;
    if (!paired) {
      x.read(rows[r], reinterpret_cast<float*>(row));
    } else if (as_it_is) {
      to_pairs(at, x.width, row);
    } else {
      x.read(rows[r], values);
      to_pairs(reinterpret_cast<const char*>(values), x.width, row);
    }
  }
  order_rows(words, count, pitch, steps, in_tiles, to);
}

void pack_rounded_rows(const Activations& x, const int32_t* rows, int count, const float* given,
                       uint32_t middle, bool in_tiles, uint32_t* to, float* sums) {
  const int64_t steps = (x.width + 3) / 4, pitch = steps + PADDING;
  Arena memory(task_scratch().take(Arena::bytes<float>(x.width) +
                                   Arena::bytes<uint32_t>(count * pitch)));
  float* values = memory.array<float>(x.width);
  uint32_t* words = memory.array<uint32_t>(count * pitch);
  for (int r = 0; r < count; r++) {
    x.read(rows[r], values);
    sums[r] = given ? *given : scale_of_int8(values, x.width);
    const uint32_t sum =
        round_row(values, x.width, sums[r], reinterpret_cast<char*>(words + r * pitch));
    const uint32_t missing = 0u - middle * sum;
    std::memcpy(sums + count + r, &missing, sizeof missing);
  }
  order_rows(words, count, pitch, steps, in_tiles, to);
}

void sum_groups(const uint32_t* words, int count, bool in_tiles, int64_t steps, int64_t size,
                Number number, float* to) {
  const auto word = [&](int64_t step, int64_t row) {
    const int64_t tile = step / TILE_WORDS * count;
    return in_tiles ? words[(tile + row) * TILE_WORDS + step % TILE_WORDS]
                    : words[step * count + row];
  };
  const RowBlocks blocks(count);
  for (int64_t block = 0; block < blocks.count; block++)
    for (int64_t begin = 0; begin < steps; begin += size) {
      const int64_t end = std::min(steps, begin + size), row0 = blocks.begin(block);
      for (int r = 0; r < blocks.in(block); r++) {
        Floats sums{};
        for (int64_t step = begin; step < end; step += LANES) {
          Words some{};
          for (int64_t i = 0; i < std::min<int64_t>(LANES, end - step); i++)
            some[i] = word(step + i, row0 + r);
          if (number == Number::BFLOAT16) {
            sums += (Floats)(some << 16) + (Floats)(some & 0xffff0000u);
          } else {
            sums += (Floats)some;
          }
        }
        *to++ = total(sums);
      }
    }
}

}  // namespace jengine
