// Integers of 8 and 4 bits as the micro kernel's right operand, converted in registers.
//
// Both fit into bfloat16 exactly, so sums have the bits of those with a converted copy of the
// weight. In pairs a step has two numbers of k for each of 32 columns, in singles one. Quads, of four,
// are not converted: they meet rows that are rounded to int8. Their codes are unsigned, as the
// processors' instruction wants one operand, so that sums are too large by the middle code times the
// row's own sum. Integers have no rounding: sums are exact in every order.
#pragma once

#include "micro_kernel.h"

namespace jengine {

typedef int8_t Bytes __attribute__((vector_size(LANES)));

constexpr int INT4_MIDDLE = 8;  // codes of 4 bits are unsigned: 0 stands for -8

inline Floats from_integers(Ints values) { return __builtin_convertvector(values, Floats); }

// Two small integers for each lane to a word of two bfloat16.
inline Words to_pair(Ints low, Ints high) {
  return ((Words)from_integers(low) >> 16) | (Words)from_integers(high);
}

#if defined(JENGINE_AVX512)
// -8 ... 7 in bfloat16, twice: the lowest 5 bits of an index count, and a code has 4.
inline __m512i int4_table() {
  alignas(64) static constexpr uint16_t VALUES[32] = {
      0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
      0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
      0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
  return _mm512_load_si512(VALUES);
}
#endif

#if defined(JENGINE_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define JENGINE_BYTE_TABLES 1
// The bytes of the bfloat16 of 0 to 127. Those of 128, which is found at 0, differ in the higher one.
struct Bfloat16Bytes {
  alignas(64) uint8_t low[128] = {}, positive[128] = {}, negative[128] = {};
  constexpr Bfloat16Bytes() {
    for (int value = 1; value < 128; value++) {
      int exponent = 0;
      while (value >> (exponent + 1)) exponent++;
      const int bits = (127 + exponent) << 7 | ((value << (7 - exponent)) & 127);
      low[value] = bits & 255, positive[value] = bits >> 8, negative[value] = bits >> 8 | 128;
    }
    negative[0] = 0xc3;  // no negative number but -128 is found there
  }
};
#endif

// [32 columns][2 k] of int8.
struct Int8Pairs : Bfloat16 {
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = 2 * PANEL;
  static Words read(const char* at, int v) {
    at += 2 * LANES * v;
#if defined(JENGINE_AVX512) && defined(__AVX512BF16__)
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(at)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(at + 16)));
    return (Words)_mm512_cvtne2ps_pbh(high, low);
#else
    const Words both = widened(load<Halves>(at));
    return to_pair((Ints)(both << 24) >> 24, (Ints)(both << 16) >> 24);
#endif
  }
};

#if defined(JENGINE_BYTE_TABLES)
// The same numbers from tables, in two thirds of the instructions' time, but with more registers.
struct Int8PairsOfFewRows : Int8Pairs {
  static Words read(const char* at, int v) {
    static constexpr Bfloat16Bytes BYTES;
    // Interleaving takes bytes 0 to 7 of each 16 for the first vector, and the others for the second.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i codes = _mm512_permutexvar_epi64(order, load<__m512i>(at));
    const __m512i size = _mm512_abs_epi8(codes);
    const auto find = [&](const uint8_t* table) {
      return _mm512_permutex2var_epi8(load<__m512i>(table), size, load<__m512i>(table + 64));
    };
    const __m512i low = find(BYTES.low);
    const __m512i high = _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), find(BYTES.positive),
                                                find(BYTES.negative));
    return (Words)(v ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high));
  }
};
template <>
struct OfFewRows<Int8Pairs> {
  using Kind = Int8PairsOfFewRows;
};
#endif

// [8 columns][2 k] of 16 bits each, in which columns 8 apart follow each other, lowest bits first.
struct Int4Pairs : Bfloat16 {
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = PANEL;
  static Words read(const char* at, int v) {
#if defined(JENGINE_AVX512)
    const __m512i both = _mm512_broadcast_i64x4(load<__m256i>(at));
    const __m256i low = _mm256_set1_epi16((short)(8 * v)), high = _mm256_set1_epi16((short)(8 * v + 4));
    const __m512i shifts = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    return (Words)_mm512_permutexvar_epi16(_mm512_srlv_epi16(both, shifts), int4_table());
#else
    constexpr int PARTS = 8 / LANES;
    const Words both = load<Words>(at + v % PARTS * 4 * LANES) >> (4 * (v / PARTS));
    return to_pair((Ints)(both & 15u) - INT4_MIDDLE, (Ints)((both >> 16) & 15u) - INT4_MIDDLE);
#endif
  }
};

// [32 columns] of int8.
struct Int8Singles : Float32 {
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = PANEL;
  static Floats read(const char* at, int v) {
    return from_integers(__builtin_convertvector(load<Bytes>(at + LANES * v), Ints));
  }
};

// [16 columns] of 8 bits each, the lower half of which belongs to columns 0 to 15.
struct Int4Singles : Float32 {
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = PANEL / 2;
  static Floats read(const char* at, int v) {
    const int column = LANES * v;
    const Ints both = __builtin_convertvector(load<Bytes>(at + column % 16), Ints);
    return from_integers(((both >> (4 * (column / 16))) & 15) - INT4_MIDDLE);
  }
};

// [32 columns][4 k] of bytes, larger by 128 than what they stand for. Sums are the bits of integers.
struct Int8Quads {
  using Vector = Words;
  using Converted = Int8Quads;
  static constexpr bool IS_CODES = false;
  static constexpr int64_t DEPTH = 4, STEP_BYTES = 4 * PANEL;
  static Vector read(const char* at, int v) { return load<Words>(at + v * sizeof(Words)); }
  static Floats add(Floats sum, uint32_t left, Vector right) {
    return (Floats)dot_bytes((Words)sum, right, splat(left));
  }
};

// [16 columns][4 k] of bytes, the lower half of which belongs to columns 0 to 15.
struct Int4Quads : Int8Quads {
  using Converted = Int4Quads;
  static constexpr int64_t STEP_BYTES = 2 * PANEL;
  static Vector read(const char* at, int v) {
    const int column = LANES * v;
    return (load<Words>(at + column % 16 * 4) >> (4 * (column / 16))) & 0x0f0f0f0fu;
  }
};

// Converts steps of a panel into the numbers that stand for them.
template <class Kind>
void convert_tile(const char* codes, int64_t steps, char* to) {
  using Vector = typename Kind::Vector;
  for (int64_t step = 0; step < steps; step++, codes += Kind::STEP_BYTES)
    for (int v = 0; v < VECTORS; v++, to += sizeof(Vector)) store(to, Kind::read(codes, v));
}

// Few rows have few sums, each of which waits for the one before it: two panels have twice as many.
constexpr int MOST_ROWS_OF_TWO = 3;

// The scaled sums of two panels, `bytes` apart, each in the order in which multiply() takes them. They
// are written `pitch` numbers apart; scales are `scale_pitch` apart.
template <class Kind, int ROWS>
void multiply_two(const uint32_t* left, const char* right, int64_t bytes, int64_t steps,
                  float* sums, int64_t pitch, Ahead ahead, GroupScaling scaling,
                  int64_t scale_pitch) {
  Floats all[2][ROWS][VECTORS] = {};
  // Where the memory to prefetch passes the first panel's end, the second panel is there already.
  const char* const second = right + bytes;
  const int64_t distance = ahead.at - right;
  while (steps) {
    const char* soon = right + distance + (right + distance < second ? 0 : bytes);
    Floats acc[2][ROWS][VECTORS];
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++)
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++)
          acc[p][r][v] = scaling.begin(r, p * scale_pitch + v * LANES);
    if (scaling.zeros)
      for (int p = 2; p < 4; p++)
        for (int v = 0; v < VECTORS; v++) prefetch(scaling.zeros + p * scale_pitch + v * LANES);
    const int64_t size = scaling.steps < steps ? scaling.steps : steps;
    for (int64_t step = 0; step < size; step++) {
      prefetch(soon);
      prefetch(soon + bytes);
      soon += ahead.bytes;
#pragma GCC unroll 2
      for (int p = 0; p < 2; p++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
          const typename Kind::Vector columns = Kind::read(right + p * bytes, v);
#pragma GCC unroll 3
          for (int r = 0; r < ROWS; r++) acc[p][r][v] = Kind::add(acc[p][r][v], left[r], columns);
        }
      left += ROWS;
      right += Kind::STEP_BYTES;
    }
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        const float* scales = scaling.scales + p * scale_pitch + v * LANES;
        prefetch(scales + 2 * scale_pitch);
        const Floats scale = load<Floats>(scales);
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++) all[p][r][v] = fma(acc[p][r][v], scale, all[p][r][v]);
      }
    if (steps -= size) scaling = scaling.next(ROWS);
  }
  for (int p = 0; p < 2; p++)
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++)
        store(sums + p * pitch + r * PANEL + v * LANES, all[p][r][v]);
}

using MultiplyTwo = void (*)(const uint32_t*, const char*, int64_t, int64_t, float*, int64_t, Ahead,
                             GroupScaling, int64_t);

template <class Kind>
MultiplyTwo multiply_two_for(int rows) {
  using Few = typename OfFewRows<Kind>::Kind;
  static constexpr MultiplyTwo table[] = {multiply_two<Few, 1>, multiply_two<Few, 2>,
                                          multiply_two<Few, 3>};
  return table[rows - 1];
}

extern template Multiply multiply_for<Int8Pairs, 0>(int);
extern template Multiply multiply_for<Int4Pairs, 0>(int);
extern template Multiply multiply_for<Int8Singles, 0>(int);
extern template Multiply multiply_for<Int4Singles, 0>(int);
extern template Multiply multiply_for<Int8Quads, 0>(int);
extern template Multiply multiply_for<Int4Quads, 0>(int);

}  // namespace jengine
