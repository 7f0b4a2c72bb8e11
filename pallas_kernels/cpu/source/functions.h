// exp, log, tanh and the activations of feed-forward blocks, on vectors.
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

// The natural logarithm of positive normal numbers, as in Cephes.
inline Floats log_of_normal(Floats x) {
  const Words bits = (Words)x;
  Floats rest = (Floats)((bits & 0x807fffffu) | 0x3f000000u);  // in [0.5, 1)
  const Floats exponent = __builtin_convertvector((Ints)(bits >> 23) - 126, Floats);
  const Ints small = rest < 0.707106769f;
  const Floats n = exponent - select(small, splat(1.0f), Floats{});
  rest = rest - 1.0f + select(small, rest, Floats{});
  const Floats square = rest * rest, cube = square * rest;
  Floats first = fma(rest, splat(7.0376836292e-2f), splat(-1.1514610310e-1f));
  Floats second = fma(rest, splat(-1.2420140846e-1f), splat(1.4249322787e-1f));
  Floats third = fma(rest, splat(2.0000714765e-1f), splat(-2.4999993993e-1f));
  first = fma(first, rest, splat(1.1676998740e-1f));
  second = fma(second, rest, splat(-1.6668057665e-1f));
  third = fma(third, rest, splat(3.3333331174e-1f));
  const Floats series = fma(fma(first, cube, second), cube, third);
  const Floats low = fma(series, cube, n * -2.12194440e-4f);
  return fma(n, splat(0.693359375f), rest - square * 0.5f + low);
}
// log(1 - x) for x in [0, 1), as in Cephes: exact to the last places for small x too.
inline Floats log_of_rest(Floats x) {
  const Floats square = x * x;
  Floats above = fma(-x, splat(4.5270000862e-5f), splat(4.9854102823e-1f));
  above = fma(-x, above, splat(6.5787325942f));
  above = fma(-x, above, splat(29.911919328f));
  above = fma(-x, above, splat(60.949667980f));
  above = fma(-x, above, splat(57.112963590f));
  above = fma(-x, above, splat(20.039553499f));
  Floats below = splat(15.062909083f) - x;
  below = fma(-x, below, splat(83.047565967f));
  below = fma(-x, below, splat(221.76239823f));
  below = fma(-x, below, splat(309.09872225f));
  below = fma(-x, below, splat(216.42788614f));
  below = fma(-x, below, splat(60.118660497f));
  const Floats near = square * -0.5f - square * x * (above / below) - x;
  return select(x < 0.414213568f, near, log_of_normal(1.0f - x));
}

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp(x + x) + 1.0f); }
inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = x * x * x;
  return 0.5f * x * (1.0f + tanh(0.79788456f * fma(splat(0.044715f), cubic, x)));
}

// The error function as a rational one, fitted on [-4, 4] as in Eigen; beyond that it is 1 in float32.
inline Floats erf(Floats x) {
  x = max(splat(-4.0f), min(splat(4.0f), x));
  const Floats square = x * x;
  Floats above = fma(splat(-2.72614225801306e-10f), square, splat(2.77068142495902e-08f));
  above = fma(above, square, splat(-2.10102402082508e-06f));
  above = fma(above, square, splat(-5.69250639462346e-05f));
  above = fma(above, square, splat(-7.34990630326855e-04f));
  above = fma(above, square, splat(-2.95459980854025e-03f));
  above = fma(above, square, splat(-1.60960333262415e-02f));
  Floats below = fma(splat(-1.45660718464996e-05f), square, splat(-2.13374055278905e-04f));
  below = fma(below, square, splat(-1.68282697438203e-03f));
  below = fma(below, square, splat(-7.37332916720468e-03f));
  below = fma(below, square, splat(-1.42647390514189e-02f));
  return x * above / below;
}
inline Floats gelu(Floats x) { return 0.5f * x * (1.0f + erf(0.70710678f * x)); }

enum class Activation : int32_t { NONE = 0, SILU = 1, GELU_TANH = 2, GELU = 3 };

inline Floats activated(Activation activation, Floats x) {
  switch (activation) {
    case Activation::SILU: return silu(x);
    case Activation::GELU_TANH: return gelu_tanh(x);
    case Activation::GELU: return gelu(x);
    case Activation::NONE: break;
  }
  return x;
}

}  // namespace jengine
