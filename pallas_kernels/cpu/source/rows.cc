#include "rows.h"

#include <cmath>

namespace jengine {
namespace {

constexpr int64_t ROWS_OF_TASK = 16;

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

// Two bfloat16 to a word, in order.
void to_pairs(const float* values, int64_t width, uint32_t* words) {
  int64_t i = 0;
  for (; i + 2 * LANES <= width; i += 2 * LANES) {
    store(words + i / 2, to_bfloat16(load<Floats>(values + i)));
    store(words + i / 2 + LANES / 2, to_bfloat16(load<Floats>(values + i + LANES)));
  }
  for (; i < width; i += 2) {
    const Floats pair = splat(values[i]), next = splat(i + 1 < width ? values[i + 1] : 0.0f);
    const uint32_t word = to_bfloat16(pair)[0] | (uint32_t)to_bfloat16(next)[0] << 16;
    std::memcpy(words + i / 2, &word, sizeof word);
  }
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

void pack_rows(const Activations& x, const int32_t* rows, int count, Number number, float* values,
               uint32_t* to) {
  const bool paired = number == Number::BFLOAT16;
  const int64_t steps = paired ? (x.width + 1) / 2 : x.width;
  uint32_t* words = reinterpret_cast<uint32_t*>(values);
  for (int r = 0; r < count; r++) {
    x.read(rows[r], values);
    if (paired) to_pairs(values, x.width, words);  // in place: it writes behind where it reads
    for (int64_t s = 0; s < steps; s++)
      std::memcpy(to + s * count + r, values + s, sizeof(uint32_t));
  }
}

}  // namespace jengine
