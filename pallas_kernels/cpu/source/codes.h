// Integers of 8 and 4 bits as the micro kernel's right operand, converted in registers.
//
// Both fit into bfloat16 exactly, so sums have the bits of those with a converted copy of the
// weight. In pairs a step has two numbers of k for each of 32 columns, in singles one. Quads, of four,
// are not converted: they meet rows that are rounded to int8. Their codes are unsigned, as the
// processors' instruction wants one operand, so that sums are too large by the middle code times the
// row's own sum. Integers have no rounding: sums are exact in every order.
#pragma once

#include "code_forms.h"

namespace jengine {

typedef int8_t Bytes __attribute__((vector_size(LANES)));

// Signed bytes as integers. The compiler would take each out of its vector.
inline Ints from_bytes(const char* at) {
#if defined(JENGINE_AVX512)
  return (Ints)_mm512_cvtepi8_epi32(load<__m128i>(at));
#elif defined(JENGINE_AVX2)
  return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<long long>(at)));
#else
  return __builtin_convertvector(load<Bytes>(at), Ints);
#endif
}

inline Floats from_integers(Ints values) { return __builtin_convertvector(values, Floats); }

// Two small integers for each lane to a word of two bfloat16.
inline Words to_pair(Ints low, Ints high) {
  return ((Words)from_integers(low) >> 16) | (Words)from_integers(high);
}

// The bits of an integer of at most 8 bits as bfloat16.
constexpr uint16_t bfloat16_of(int value) {
  const int size = value < 0 ? -value : value;
  if (size == 0) return 0;
  int exponent = 0;
  while (size >> (exponent + 1)) exponent++;
  return (uint16_t)((value < 0) << 15 | (127 + exponent) << 7 | ((size << (7 - exponent)) & 127));
}

#if defined(JENGINE_AVX512)
// A vector that holds a plane of BITS bits as often as there are columns in a half of a word.
template <int BITS>
inline __m512i repeated_plane(const char* at) {
  if constexpr (BITS == 4) return _mm512_broadcast_i64x4(load<__m256i>(at));
  if constexpr (BITS == 2) return _mm512_broadcast_i32x4(load<__m128i>(at));
  if constexpr (BITS == 1) return _mm512_set1_epi64(load<long long>(at));
}
#endif

// A vector's codes of a plane of BITS bits, each at the bottom of its half of a word, below other bits.
template <int BITS>
inline Words plane_of_pairs(const char* at, int v) {
  constexpr int COLUMNS = columns_apart(BITS, 2);
#if defined(JENGINE_AVX512)
  struct Shifts {
    alignas(64) uint16_t of[VECTORS][32] = {};
    constexpr Shifts() {
      for (int i = 0; i < VECTORS * 32; i++) of[i / 32][i % 32] = (uint16_t)(i / 2 / COLUMNS * BITS);
    }
  };
  static constexpr Shifts SHIFTS;
  return (Words)_mm512_srlv_epi16(repeated_plane<BITS>(at), load<__m512i>(SHIFTS.of[v]));
#else
  if constexpr (COLUMNS >= LANES) {
    return load<Words>(at + v * LANES % COLUMNS * 4) >> (v * LANES / COLUMNS * BITS);
  } else {
    Words words, shifts;
    for (int i = 0; i < LANES; i++) {
      words[i] = load<uint32_t>(at + i % COLUMNS * 4);
      shifts[i] = (v * LANES + i) / COLUMNS * BITS;
    }
    return words >> shifts;
  }
#endif
}

// The same of single numbers of k.
template <int BITS>
inline Ints plane_of_singles(const char* at, int v) {
  constexpr int COLUMNS = columns_apart(BITS, 1);
  Ints shifts;
  for (int i = 0; i < LANES; i++) shifts[i] = (v * LANES + i) / COLUMNS * BITS;
#if defined(JENGINE_AVX512)
  __m128i bytes;
  if constexpr (BITS == 4) bytes = load<__m128i>(at);
  if constexpr (BITS == 2) bytes = _mm_set1_epi64x(load<long long>(at));
  if constexpr (BITS == 1) bytes = _mm_set1_epi32(load<int>(at));
  return (Ints)_mm512_srlv_epi32(_mm512_cvtepu8_epi32(bytes), (__m512i)shifts);
#else
  constexpr int RUN_OF_CODES = COLUMNS < LANES ? COLUMNS : LANES;
  char bytes[LANES];
  for (int i = 0; i < LANES; i += RUN_OF_CODES)
    std::memcpy(bytes + i, at + v * LANES % COLUMNS, RUN_OF_CODES);
  return from_bytes(bytes) >> shifts;
#endif
}

// The low bits of one plane with those of another above them. Bits above are others'.
template <int LOW>
inline Words joined(Words low, Words high) {
  constexpr uint32_t MASK = ((1u << LOW) - 1) * 0x10001u;
  return (low & MASK) | (high << LOW & ~MASK);
}

// Numbers that codes stand for.
template <Codes CODES>
inline Floats values_of(Ints codes) {
  codes &= (1 << form_of(CODES).bits) - 1;
  if constexpr (CODES == Codes::IQ4) {
    Floats found;
    for (int i = 0; i < LANES; i++) found[i] = (float)IQ4_VALUES[codes[i]];
    return found;
  } else {
    return from_integers(codes - form_of(CODES).middle());
  }
}

#if defined(JENGINE_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define JENGINE_BYTE_TABLES 1
// The bytes of the bfloat16 of 0 to 127. Those of 128, which is found at 0, differ in the higher one.
struct Bfloat16Bytes {
  alignas(64) uint8_t low[128] = {}, positive[128] = {}, negative[128] = {};
  constexpr Bfloat16Bytes() {
    for (int value = 0; value < 128; value++) {
      const int bits = bfloat16_of(value);
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

// Planes of [columns][2 k] of 16 bits each, in which columns so many apart follow each other, lowest
// bits first.
template <Codes CODES>
struct CodePairs : Bfloat16 {
  static constexpr int BITS = form_of(CODES).bits, LOW = low_bits(BITS);
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = 2 * PANEL * BITS / 8;
  static Words read(const char* at, int v) {
    Words codes = plane_of_pairs<LOW>(at, v);
    if constexpr (BITS > LOW)
      codes = joined<LOW>(codes, plane_of_pairs<BITS - LOW>(at + 2 * PANEL * LOW / 8, v));
    return from_codes(codes);
  }

  // Pairs of numbers that codes, below other bits, stand for.
  static Words from_codes(Words codes) {
#if defined(JENGINE_AVX512)
    // As many bits of an index count as a table of one or two registers has; codes may have fewer.
    struct Table {
      alignas(64) uint16_t bits[BITS > 5 ? 64 : 32] = {};
      constexpr Table() {
        for (int i = 0; i < (BITS > 5 ? 64 : 32); i++)
          bits[i] = bfloat16_of(value_of(CODES, i % (1 << BITS)));
      }
    };
    static constexpr Table TABLE;
    const __m512i first = load<__m512i>(TABLE.bits);
    if constexpr (BITS > 5)
      return (Words)_mm512_permutex2var_epi16(first, (__m512i)codes, load<__m512i>(TABLE.bits + 32));
    else
      return (Words)_mm512_permutexvar_epi16((__m512i)codes, first);
#else
    const Words low = (Words)values_of<CODES>((Ints)codes);
    return (low >> 16) | (Words)values_of<CODES>((Ints)(codes >> 16));
#endif
  }
};
using Int4Pairs = CodePairs<Codes::INT4>;

#if defined(JENGINE_AVX512)
// The same numbers with fewer permutations and shifts, which bound few rows; many rows take longer.
// Turning whole words shifts both ways: what comes from a word's other half is not selected.
template <Codes CODES>
struct CodePairsOfFewRows : CodePairs<CODES> {
  using CodePairs<CODES>::BITS, CodePairs<CODES>::LOW;
  static Words read(const char* at, int v) {
    constexpr int HIGH = BITS - LOW;
    struct Turns {
      alignas(64) uint32_t of[VECTORS][LANES] = {};
      constexpr Turns() {
        for (int i = 0; i < PANEL; i++)
          of[i / LANES][i % LANES] = (uint32_t)(i / columns_apart(HIGH, 2) * HIGH - LOW) % 32;
      }
    };
    static constexpr Turns TURNS;
    const __m512i low_bits = _mm512_set1_epi16((1 << LOW) - 1);
    const __m512i low = (__m512i)plane_of_pairs<LOW>(at, v);
    const __m512i high = _mm512_rorv_epi32(repeated_plane<HIGH>(at + 2 * PANEL * LOW / 8),
                                           load<__m512i>(TURNS.of[v]));
    constexpr int SELECT = 0xca;
    return CodePairs<CODES>::from_codes(
        (Words)_mm512_ternarylogic_epi32(low_bits, low, high, SELECT));
  }
};
#define JENGINE_OF_FEW_ROWS(CODES)            \
  template <>                                 \
  struct OfFewRows<CodePairs<CODES>> {        \
    using Kind = CodePairsOfFewRows<CODES>;   \
  };
JENGINE_OF_FEW_ROWS(Codes::INT3)
JENGINE_OF_FEW_ROWS(Codes::INT5)
JENGINE_OF_FEW_ROWS(Codes::INT6)
#endif

// [32 columns] of int8.
struct Int8Singles : Float32 {
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = PANEL;
  static Floats read(const char* at, int v) {
    return from_integers(from_bytes(at + LANES * v));
  }
};

// Planes of [columns] of 8 bits each, in which columns so many apart follow each other.
template <Codes CODES>
struct CodeSingles : Float32 {
  static constexpr int BITS = form_of(CODES).bits, LOW = low_bits(BITS);
  static constexpr bool IS_CODES = true;
  static constexpr int64_t STEP_BYTES = PANEL * BITS / 8;
  static Floats read(const char* at, int v) {
    Words codes = (Words)plane_of_singles<LOW>(at, v);
    if constexpr (BITS > LOW)
      codes = joined<LOW>(codes, (Words)plane_of_singles<BITS - LOW>(at + PANEL * LOW / 8, v));
    return values_of<CODES>((Ints)codes);
  }
};
using Int4Singles = CodeSingles<Codes::INT4>;

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
// are written `pitch` numbers apart; each has the scales of so many groups.
template <class Kind, int ROWS>
void multiply_two(const uint32_t* left, const char* right, int64_t bytes, int64_t steps,
                  float* sums, int64_t pitch, Ahead ahead, GroupScaling scaling,
                  int64_t num_groups) {
  Floats all[2][ROWS][VECTORS] = {};
  // Where the memory to prefetch passes the first panel's end, the second panel is there already.
  const char* const second = right + bytes;
  const int64_t distance = ahead.at - right;
  Groups groups{steps, true, scaling};
  do {
    const Group group = groups.first();
    const char* soon = right + distance + (right + distance < second ? 0 : bytes);
    Floats acc[2][ROWS][VECTORS] = {};
    for (int64_t step = 0; step < group.steps; step++) {
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
    Floats scales[2][VECTORS];
    group.scales.read(scales, num_groups);
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        prefetch(group.scales.later((p + 2) * num_groups).data + v * sizeof(Floats));
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++) all[p][r][v] = fma(acc[p][r][v], scales[p][v], all[p][r][v]);
      }
  } while (groups.drop_first());
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

// Which kinds have kernels of their own. Tiles of the others are converted first, into the same bits.
template <class Kind>
constexpr bool HAS_KERNEL = !std::is_base_of_v<Float32, Kind>;
template <>
inline constexpr bool HAS_KERNEL<Int8Singles> = true;
template <>
inline constexpr bool HAS_KERNEL<Int4Singles> = true;

#define JENGINE_CODE_KERNELS(MACRO)                                                        \
  MACRO(Int8Pairs) MACRO(Int8Singles) MACRO(Int8Quads) MACRO(Int4Singles) MACRO(Int4Quads) \
  MACRO(CodePairs<Codes::INT2>) MACRO(CodePairs<Codes::INT3>) MACRO(CodePairs<Codes::INT4>) \
  MACRO(CodePairs<Codes::INT5>) MACRO(CodePairs<Codes::INT6>) MACRO(CodePairs<Codes::IQ4>)
#define JENGINE_COMPILED_ONCE(KIND) extern template Multiply multiply_for<KIND, 0>(int);
JENGINE_CODE_KERNELS(JENGINE_COMPILED_ONCE)

}  // namespace jengine
