// Where a block has its heads, and heads as codes of one byte with a scale in bfloat16.
#pragma once

#include "micro_kernel.h"

namespace jengine {

typedef uint8_t CodeBytes __attribute__((vector_size(LANES)));

constexpr int64_t SCALE_BYTES = 2;

// A plane is [blocks, block_size, kv_heads, dim]. Blocks of codes end with the scales of their heads,
// [kv_heads, block_size].
struct PlaneShape {
  Number number;
  int64_t blocks, block_size, kv_heads, dim;

  int64_t width() const { return kv_heads * dim; }
  int64_t head_bytes() const { return dim * size_of(number); }
  int64_t token_bytes() const { return kv_heads * head_bytes(); }
  int64_t scales() const { return block_size * token_bytes(); }
  int64_t scales_of_head(int64_t head) const { return head * block_size * SCALE_BYTES; }
  int64_t block_bytes() const {
    return scales() + (is_code(number) ? scales_of_head(kv_heads) : 0);
  }
  // Byte offsets in a plane of a slot's first head, and of that head's scale.
  int64_t place(int64_t slot) const {
    return slot / block_size * block_bytes() + slot % block_size * token_bytes();
  }
  int64_t scale_place(int64_t slot) const {
    return slot / block_size * block_bytes() + scales() + slot % block_size * SCALE_BYTES;
  }
};

// FP8 (E4M3) is the upper part of a float16 whose exponent is larger by 8.
inline Floats from_fp8(CodeBytes codes) {
  const Halves wide = __builtin_convertvector(codes, Halves);
  return from_float16(((wide & 0x7f) << 7) | ((wide & 0x80) << 8)) * splat(256.0f);
}
// Rounds to nearest, ties to even; the values are at most 448.
inline CodeBytes to_fp8(Floats value) {
  const Words bits = (Words)value, sign = (bits >> 24) & 0x80u, size = bits & 0x7fffffffu;
  const Words normal = ((size + 0x7ffffu + ((size >> 20) & 1u)) >> 20) - 960u;
  // Adding a number whose last place is that of the result rounds subnormal results.
  const Words small = (Words)((Floats)size + splat(16384.0f)) - 0x46800000u;
  const Ints is_small = (Ints)(size < 0x3c800000u);
  const Ints code = ((Ints)small & is_small) | ((Ints)normal & ~is_small);
  return __builtin_convertvector((Words)code | sign, CodeBytes);
}
inline Floats from_int8(CodeBytes codes) {
  const Ints wide = __builtin_convertvector(codes, Ints);
  return __builtin_convertvector((Ints)((Words)wide << 24) >> 24, Floats);
}
// Rounds to nearest, ties to even: the sum has no place for fractions.
inline CodeBytes to_int8(Floats value) {
  const Words rounded = (Words)(value + splat(12582912.0f)) - 0x4b400000u;
  return __builtin_convertvector(rounded, CodeBytes);
}

inline float largest_code(Number number) { return number == Number::INT8 ? 127.0f : 448.0f; }

// The smallest scale in bfloat16 by which no number of a head is cut off; NaN if one is not finite.
inline float scale_of(Number number, const float* head, int64_t dim) {
  Floats highest{}, bad{};
  for (int64_t d = 0; d < dim; d += LANES) {
    const Floats values = load_some<Floats>(head + d, dim - d);
    highest = max(highest, max(values, -values));
    bad += values * 0.0f;
  }
  float scale = largest(highest) / largest_code(number);
  scale = (scale > 1e-12f ? scale : 1e-12f) + total(bad);
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  bits = (bits + 0xfff7u) & 0xffff0000u;  // ROUNDING_UP of layout.py
  std::memcpy(&scale, &bits, sizeof bits);
  return scale;
}

inline void store_head(char* to, char* scale_to, Number number, const float* head, int64_t dim) {
  const float scale = scale_of(number, head, dim);
  for (int64_t d = 0; d < dim; d += LANES) {
    const Floats units = load_some<Floats>(head + d, dim - d) / splat(scale);
    store_some(to + d, number == Number::INT8 ? to_int8(units) : to_fp8(units), dim - d);
  }
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  const uint16_t upper = bits >> 16;
  std::memcpy(scale_to, &upper, sizeof upper);
}

inline void load_head(const char* from, const char* scale_from, Number number, int64_t dim,
                      float* head) {
  uint16_t upper;
  std::memcpy(&upper, scale_from, sizeof upper);
  const Floats scale = (Floats)splat((uint32_t)upper << 16);
  for (int64_t d = 0; d < dim; d += LANES) {
    const CodeBytes codes = load_some<CodeBytes>(from + d, dim - d);
    const Floats values = number == Number::INT8 ? from_int8(codes) : from_fp8(codes);
    store_some(head + d, values * scale, dim - d);
  }
}

}  // namespace jengine
