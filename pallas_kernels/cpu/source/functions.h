// exp, tanh and the activations of feed-forward blocks, on vectors.
#pragma once

#include "vector.h"

namespace jengine {

constexpr float LOWEST_EXPONENT = -87.0f, HIGHEST_EXPONENT = 88.0f;

// For x up to 88, within 2 units of the last place. exp(0) is exactly 1; below -87 it is 0.
inline Floats exp_up_to_88(Floats x) {
  const Ints vanishes = x < LOWEST_EXPONENT;
  x = max(splat(LOWEST_EXPONENT), x);  // NaN stays as it is
  // x = n * ln 2 + rest with an integer n: adding 1.5 * 2^23 rounds to an integer, in the low bits.
  const Floats magic = splat(0x1.8p23f);
  const Floats rounded = fma(x, splat(1.44269504f), magic), n = rounded - magic;
  Floats rest = fma(n, splat(-0.693147182464599609375f), x);
  rest = fma(n, splat(1.904654299958e-9f), rest);
  // (exp(r) - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2], fitted for the least relative error of exp.
  Floats series = splat(1.3814466e-3f);
  series = fma(series, rest, splat(8.3687808e-3f));
  series = fma(series, rest, splat(4.1668393e-2f));
  series = fma(series, rest, splat(1.6666520e-1f));
  series = fma(series, rest, splat(0.49999994f));
  const Floats fraction = fma(series, rest * rest, rest) + 1.0f;
  const Floats whole = (Floats)((Words)fraction + ((Words)rounded << 23));
  return (Floats)((Ints)whole & ~vanishes);
}
inline Floats exp(Floats x) { return exp_up_to_88(min(splat(HIGHEST_EXPONENT), x)); }
inline float exp(float x) { return exp(splat(x))[0]; }

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp(x + x) + 1.0f); }
inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = x * x * x;
  return 0.5f * x * (1.0f + tanh(0.79788456f * fma(splat(0.044715f), cubic, x)));
}

enum class Activation : int32_t { NONE = 0, SILU = 1, GELU_TANH = 2 };

inline Floats activated(Activation activation, Floats x) {
  switch (activation) {
    case Activation::SILU: return silu(x);
    case Activation::GELU_TANH: return gelu_tanh(x);
    case Activation::NONE: break;
  }
  return x;
}

}  // namespace jengine
