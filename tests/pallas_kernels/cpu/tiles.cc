// Multiplies rows by a panel in matrix tiles and prints where a sum is not what plain loops give, or
// not what a row has alone. Arguments: rows, numbers of k, and steps after which the sums are stored.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "tile_kernel.h"

using namespace jengine;

namespace {

std::mt19937 generator(7);

// Pairs of bfloat16 between -1 and 1, and where k is odd half a pair at the end.
std::vector<uint32_t> pairs(int64_t lines, int64_t steps, int64_t k) {
  std::vector<uint32_t> found(lines * steps);
  std::uniform_real_distribution<float> number(-1.0f, 1.0f);
  const auto bits = [&] {
    const float x = number(generator);
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    return word >> 16;
  };
  for (int64_t i = 0; i < lines * steps; i++) {
    found[i] = bits() | bits() << 16;
    if (k % 2 && i % steps == steps - 1) found[i] &= 0xffff;
  }
  return found;
}
double number(uint32_t bits) {
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

std::vector<float> product(const uint32_t* left, int rows, const std::vector<uint32_t>& right,
                           int64_t steps, int64_t at_once) {
  ShapedTiles tiles;
  tiles.shape(rows);
  std::vector<uint32_t> words(rows * (steps + TILE_WORDS));
  pack_in_tiles(left, rows, steps, steps, words.data());
  std::vector<float> sums(rows * PANEL, NAN);
  for (int64_t step = 0; step < steps; step += at_once)
    multiply_in_tiles<TiledBfloat16>(packed_tiles(words.data(), rows),
                      reinterpret_cast<const char*>(right.data() + step * PANEL),
                      step, std::min(at_once, steps - step), sums.data(), PANEL, step == 0, {});
  return sums;
}

}  // namespace

int main(int, char** given) {
  const int rows = std::atoi(given[1]);
  const int64_t k = std::atoll(given[2]), steps = (k + 1) / 2, at_once = std::atoll(given[3]);
  if (!may_use_tiles()) return std::puts("no tiles") < 0;
  const std::vector<uint32_t> left = pairs(rows, steps, k), columns = pairs(PANEL, steps, k);
  std::vector<uint32_t> right(steps * PANEL);
  for (int64_t s = 0; s < steps; s++)
    for (int c = 0; c < PANEL; c++) right[s * PANEL + c] = columns[c * steps + s];
  const std::vector<float> sums = product(left.data(), rows, right, steps, at_once);
  for (int r = 0; r < rows; r++) {
    const std::vector<float> alone = product(&left[r * steps], 1, right, steps, steps);
    for (int c = 0; c < PANEL; c++) {
      double wanted = 0.0;
      for (int64_t s = 0; s < steps; s++) {
        const uint32_t a = left[r * steps + s], b = columns[c * steps + s];
        wanted += number(a << 16) * number(b << 16);
        wanted += number(a & 0xffff0000u) * number(b & 0xffff0000u);
      }
      const float found = sums[r * PANEL + c];
      if (!(std::fabs(found - wanted) < 1e-4)) std::printf("%d %d: %g, not %g\n", r, c, found, wanted);
      if (found != alone[c]) std::printf("%d %d: alone %g, not %g\n", r, c, alone[c], found);
    }
  }
  return 0;
}
