// The sampler's random numbers: Threefry-2x32 as in jax.random, and Gumbel noise made of its bits.
#pragma once

#include "functions.h"

namespace jengine {

// Noise is between these, as its uniform number is between 2^-33 and 1 - 2^-24.
constexpr float LEAST_NOISE = -3.0f, LARGEST_NOISE = 23.0f;

// The key of one row's noise.
struct NoiseKey {
  uint32_t first, second;
};

// The counter's two words become random ones. `Word` is a number or a vector of numbers.
template <class Word>
inline void threefry(NoiseKey key, Word& x, Word& y) {
  constexpr int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t words[] = {key.first, key.second, key.first ^ key.second ^ 0x1bd11bdau};
  x += words[0];
  y += words[1];
#pragma GCC unroll 5
  for (uint32_t i = 0; i < 5; i++) {
#pragma GCC unroll 4
    for (int turn : turns[i % 2]) {
      x += y;
      y = (y << turn | y >> (32 - turn)) ^ x;
    }
    x += words[(i + 1) % 3];
    y += words[(i + 2) % 3] + (i + 1);
  }
}

// As jax.random.fold_in.
inline NoiseKey fold_in(NoiseKey key, uint32_t data) {
  uint32_t x = 0, y = data;
  threefry(key, x, y);
  return {x, y};
}

// The noise of the tokens with these indices: -log(-log(1 - u)) with u of 32 random bits. Operations
// and their order are those of XLA on the CPU, so that a seed gives the same tokens with and without
// the kernels.
inline Floats gumbel(NoiseKey key, Words index) {
  Words x{}, y = index;
  threefry(key, x, y);
  const Floats bits = __builtin_convertvector(x ^ y, Floats);
  const Floats uniform = min((bits + 0.5f) * 0x1p-32f, splat(1.0f - 0x1p-24f));
  return -log_of_normal(-log_of_rest(uniform));
}

}  // namespace jengine
