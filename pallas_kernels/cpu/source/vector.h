// Vectors as wide as the processor's registers, and the operations that differ between processors.
//
// What uses this file is written once for all. It is compiled with -ffp-contract=off: an expression
// has the same bits wherever it is inlined, and multiply-adds are fused only where fma() says so.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define JENGINE_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define JENGINE_AVX2 1
#elif defined(__aarch64__)
#define JENGINE_NEON 1
#endif

namespace jengine {

#if defined(JENGINE_AVX512)
constexpr int LANES = 16;
#elif defined(JENGINE_AVX2)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));  // bfloat16 or float16

template <class Vector>
inline Vector load(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class Vector>
inline void store(void* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}
// The first `count` lanes of a vector; others are zero, or left alone in memory. A whole vector is
// the usual case and must not become a call of memcpy.
template <class Vector>
inline Vector load_some(const void* from, int64_t count) {
  if (count >= LANES) return load<Vector>(from);
  Vector value{};
  if (count <= 0) return value;
  std::memcpy(&value, from, count * (sizeof value / LANES));
  return value;
}
template <class Vector>
inline void store_some(void* to, Vector value, int64_t count) {
  if (count >= LANES) return store(to, value);
  std::memcpy(to, &value, count * (sizeof value / LANES));
}
inline Words splat(uint32_t x) { return Words{} + x; }
inline Floats splat(float x) {  // not 0.0 + x, which is an addition
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (Floats)splat(bits);
}

// a * b + sum, rounded once where the processor can.
inline Floats fma(Floats a, Floats b, Floats sum) {
#if defined(JENGINE_AVX512)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(JENGINE_AVX2)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(JENGINE_NEON)
  return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + sum;
#endif
}

// sum + a.low * b.low + a.high * b.high, for words that hold two bfloat16 each.
inline Floats dot_pairs(Floats sum, Words a, Words b) {
#if defined(JENGINE_AVX512) && defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum = fma((Floats)(a << 16), (Floats)(b << 16), sum);
  return fma((Floats)(a & 0xffff0000u), (Floats)(b & 0xffff0000u), sum);
#endif
}

// sum + the products of pairs of int16 in each lane.
inline Words dot_shorts(Words sum, Words a, Words b) {
#if defined(JENGINE_AVX512)
  return sum + (Words)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(JENGINE_AVX2)
  return sum + (Words)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return sum + (Words)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const Ints low = ((Ints)(a << 16) >> 16) * ((Ints)(b << 16) >> 16);
  return sum + (Words)low + (Words)(((Ints)a >> 16) * ((Ints)b >> 16));
#endif
}

// sum + the products of four unsigned bytes of a and four signed ones of b in each lane, modulo 2^32.
// `vpmaddubsw` would cut off sums of two, so bytes are widened where there is no instruction for it.
inline Words dot_bytes(Words sum, Words a, Words b) {
#if defined(JENGINE_AVX512) && defined(__AVX512VNNI__)
  return (Words)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(JENGINE_AVX2) && defined(__AVXVNNI__)
  return (Words)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
  sum = dot_shorts(sum, a & 0x00ff00ffu, (Words)((Shorts)(b << 8) >> 8));
  return dot_shorts(sum, (a >> 8) & 0x00ff00ffu, (Words)((Shorts)b >> 8));
#endif
}

// The larger and the smaller of two; b where one of them is NaN.
inline Floats max(Floats a, Floats b) {
#if defined(JENGINE_AVX512)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(JENGINE_AVX2)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
inline Floats min(Floats a, Floats b) {
#if defined(JENGINE_AVX512)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(JENGINE_AVX2)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
inline Floats select(Ints mask, Floats yes, Floats no) {
  return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

// Whether all lanes are at most this; NaN is not.
inline bool all_up_to(Floats v, float most) {
#if defined(JENGINE_AVX512)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)splat(most), _CMP_LE_OQ) == 0xffff;
#else
  const Ints holds = v <= splat(most);
  bool all = true;
  for (int i = 0; i < LANES; i++) all &= holds[i] != 0;
  return all;
#endif
}

// Whether a comparison holds in some lane.
inline bool any(Ints lanes) {
#if defined(JENGINE_AVX512)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= lanes[i];
  return found;
#endif
}

// Every other lane of two vectors, one after the other, from lane 0 or 1 on.
inline Floats every_other(Floats a, Floats b, int from) {
#if defined(JENGINE_AVX512)
  const __m512i lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i order = _mm512_add_epi32(lanes, _mm512_set1_epi32(from));
  return (Floats)_mm512_permutex2var_ps((__m512)a, order, (__m512)b);
#else
  Floats found{};
  for (int i = 0; i < LANES / 2; i++) {
    found[i] = a[2 * i + from];
    found[i + LANES / 2] = b[2 * i + from];
  }
  return found;
#endif
}

inline float largest(Floats v) {
#if defined(JENGINE_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}
// The sum of all lanes, always in the same order.
inline float total(Floats v) {
#if defined(JENGINE_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

inline Words widened(Halves bits) {
#if defined(JENGINE_AVX512)
  return (Words)_mm512_cvtepu16_epi32((__m256i)bits);
#else
  return __builtin_convertvector(bits, Words);
#endif
}
inline Floats from_bfloat16(Halves bits) {
  return (Floats)(widened(bits) << 16);
}
// Rounds to nearest, ties to even; NaN stays NaN.
inline Halves to_bfloat16(Floats value) {
#if defined(JENGINE_AVX512) && defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
  const Words bits = (Words)value;
  const Ints nan = (Ints)((bits & 0x7fffffffu) > 0x7f800000u);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 64u;
  return __builtin_convertvector((Words)(((Ints)quiet & nan) | ((Ints)rounded & ~nan)), Halves);
#endif
}
inline Floats from_float16(Halves bits) {
#if defined(JENGINE_AVX512)
  return (Floats)_mm512_cvtph_ps((__m256i)bits);
#elif defined(JENGINE_AVX2)
  return (Floats)_mm256_cvtph_ps((__m128i)bits);
#elif defined(JENGINE_NEON)
  return (Floats)vcvt_f32_f16((float16x4_t)bits);
#else
  // Shifted into place, the exponent is short of float32's bias by 112; a multiplication mends that
  // for subnormal numbers too. Infinity and NaN need the largest exponent instead.
  const Words word = widened(bits);
  const Words sign = (word & 0x8000u) << 16, rest = (word & 0x7fffu) << 13;
  const Words finite = (Words)((Floats)rest * splat(0x1p112f));
  const Ints special = (Ints)(rest >= 0x0f800000u);
  const Words wide = (Words)(((Ints)(rest | 0x7f800000u) & special) | ((Ints)finite & ~special));
  return (Floats)(wide | sign);
#endif
}

// Rounds to nearest, ties to even.
inline Halves to_float16(Floats value) {
#if defined(JENGINE_AVX512)
  return (Halves)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(JENGINE_AVX2)
  return (Halves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(JENGINE_NEON)
  return (Halves)vcvt_f16_f32((float32x4_t)value);
#else
  const Words bits = (Words)value, sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  // Adding a number whose last place is that of the result rounds subnormal results.
  const Words small = (Words)((Floats)size + 0.5f) - 0x3f000000u;
  const Words normal = (size + 0xc8000fffu + ((size >> 13) & 1u)) >> 13;
  const Words large = 0x7c00u | (Words)(((Ints)(size > 0x7f800000u)) & 0x200);
  const Ints is_small = (Ints)(size < 0x38800000u), is_large = (Ints)(size >= 0x477ff000u);
  Ints half = ((Ints)small & is_small) | ((Ints)normal & ~is_small);
  half = ((Ints)large & is_large) | (half & ~is_large);
  return __builtin_convertvector((Words)half | sign, Halves);
#endif
}

// Into the second-level cache, or into the first.
inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 2); }
inline void prefetch_close(const void* at) { __builtin_prefetch(at, 0, 3); }
inline void prefetch_to_write(const void* at) { __builtin_prefetch(at, 1, 3); }
// Tells the processor that this thread only waits.
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace jengine
