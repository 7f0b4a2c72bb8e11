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
// 2^x for x up to 127, with a relative error below 2e-7, or 3e-6 if not PRECISE. exp2(0) is exactly
// 1; below -126 it is 0 or a subnormal number, at -200 it is 0.
template <bool PRECISE>
inline Floats exp2(Floats x) {
  x = max(splat(-200.0f), x);  // NaN stays as it is
#if defined(JENGINE_AVX512)
  const Floats rest = (Floats)_mm512_reduce_ps((__m512)x, 1);  // x - floor(x)
#else
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits.
  const Floats magic = splat(0x1.8p23f), rounded = x - 0.5f + magic, rest = x - (rounded - magic);
#endif
  // (2^r - 1) / r on [0, 1], fitted for the least relative error of 2^r.
  Floats series = PRECISE ? fma(splat(1.8671298e-3f), rest, splat(9.0170307e-3f))
                          : splat(1.3426683e-2f);
  series = fma(series, rest, splat(PRECISE ? 5.5799913e-2f : 5.2242476e-2f));
  series = fma(series, rest, splat(PRECISE ? 0.24016444f : 0.2412802f));
  series = fma(series, rest, splat(PRECISE ? 0.6931513f : 0.69304484f));
  const Floats fraction = fma(series, rest, splat(1.0f));
#if defined(JENGINE_AVX512)
  return (Floats)_mm512_scalef_ps((__m512)fraction, (__m512)x);  // fraction * 2^floor(x)
#else
  const Ints vanishes = x < -126.0f;
  const Floats whole = (Floats)((Words)fraction + ((Words)rounded << 23));
  return (Floats)((Ints)whole & ~vanishes);
#endif
}
inline float exp2(float x) { return exp2<true>(splat(x))[0]; }
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
