// Keys and values of a chunk as the micro kernel takes them.
#pragma once

#include "attention.h"
#include "tile_kernel.h"
#include "transpose.h"

namespace jengine {

// Not the builtin: g++ takes a function that only prefetches for one without effect, and drops it.
inline void prefetch_line(const char* at) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %0" : : "m"(*at));
#else
  prefetch(at);
#endif
}

// Fetches some bytes of each of some tokens into the second-level cache, a few cache lines at a time:
// a processor forgets what it is asked to fetch while it waits for many others.
class Fetching {
 public:
  Fetching() = default;
  Fetching(const char* plane, const int64_t* offsets, int64_t tokens, int64_t bytes)
      : plane_(plane), offsets_(offsets), bytes_(bytes), left_(tokens * ((bytes + 63) / 64)) {}

  __attribute__((always_inline)) void fetch(int64_t lines) {
    lines = std::min(lines, left_);
    left_ -= lines;
    for (int64_t i = 0; i < lines; i++) {
      prefetch_line(plane_ + *offsets_ + byte_);
      byte_ += 64;
      if (byte_ < bytes_) continue;
      byte_ = 0;
      offsets_++;
    }
  }

 private:
  const char* plane_ = nullptr;
  const int64_t* offsets_ = nullptr;
  int64_t bytes_ = 0, byte_ = 0, left_ = 0;
};
// All of a chunk is fetched while another is read, with so many lines for each square of 16 keys and
// 16 words, and for each step and panel of values.
constexpr int64_t LINES_FOR_SQUARE = 16, LINES_FOR_PANEL = 2;

// One KV head's keys and values of a chunk: byte offsets of its tokens in both planes. A token that
// no query sees has the offset of one that is seen, as what it holds itself may be anything.
struct HeadChunk {
  const char *keys, *values;  // the planes, from this head's first number on
  const char *key_scales, *value_scales;  // likewise, in a cache of codes
  const int64_t *offsets, *value_offsets, *scale_offsets;  // [CHUNK]
  int64_t dim;
  Fetching next_keys, next_values;
};

inline int64_t padded(int64_t dim) { return (dim + PANEL - 1) / PANEL * PANEL; }
inline int64_t up_to_run(int64_t words) { return (words + RUN - 1) / RUN * RUN; }

#if defined(JENGINE_AVX512)
// 16 words from the keys of each of 16 tokens, turned to a vector for each word. Words at or beyond
// `left` are zero.
inline void read_keys(const char* const (&rows)[RUN], int64_t word, int64_t left,
                      __m512i (&square)[RUN]) {
  const __mmask16 mask = left >= RUN ? 0xffff : (1u << left) - 1;
#pragma GCC unroll 16
  for (int i = 0; i < RUN; i++) square[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + 4 * word);
  transpose(square);
}
#endif

// The keys as two panels of 32 tokens, a step for each word of their vectors.
inline void order_keys(HeadChunk& chunk, int64_t words, uint32_t* to) {
  for (int64_t token = 0; token < CHUNK; token += RUN) {
    uint32_t* run = to + token / PANEL * words * PANEL + token % PANEL;
    const char* rows[RUN];
    for (int i = 0; i < RUN; i++) rows[i] = chunk.keys + chunk.offsets[token + i];
    for (int64_t word = 0; word < words; word += RUN) {
      chunk.next_keys.fetch(LINES_FOR_SQUARE);
      const int64_t count = std::min<int64_t>(RUN, words - word);
#if defined(JENGINE_AVX512)
      __m512i square[RUN];
      read_keys(rows, word, words - word, square);
      for (int64_t w = 0; w < count; w++)
        _mm512_storeu_si512(run + (word + w) * PANEL, square[w]);
#else
      for (int i = 0; i < RUN; i++)
        for (int64_t w = word; w < word + count; w++)
          std::memcpy(run + w * PANEL + i, rows[i] + 4 * w, 4);
#endif
    }
  }
}

// The numbers from d on, as many as a panel is wide, of the values of one step's tokens; zero from
// the head's end on.
inline void read_values(const HeadChunk& chunk, int64_t step, int64_t d, Floats (&to)[VECTORS]) {
  const char* at = chunk.values + chunk.value_offsets[step] + 4 * d;
  for (int v = 0; v < VECTORS; v++)
    to[v] = load_some<Floats>(at + 4 * v * LANES, chunk.dim - d - v * LANES);
}
inline void read_values(const HeadChunk& chunk, int64_t step, int64_t d, Words (&to)[VECTORS]) {
  const char* first = chunk.values + chunk.value_offsets[2 * step] + 2 * d;
  const char* second = chunk.values + chunk.value_offsets[2 * step + 1] + 2 * d;
#if defined(JENGINE_AVX512)
  const int64_t left = chunk.dim - d;
  const __mmask32 mask = left >= PANEL ? 0xffffffff : (1u << left) - 1;
  const __m512i low = _mm512_maskz_loadu_epi16(mask, first);
  const __m512i high = _mm512_maskz_loadu_epi16(mask, second);
  to[0] = (Words)_mm512_unpacklo_epi16(low, high);  // in_order() turns them back
  to[1] = (Words)_mm512_unpackhi_epi16(low, high);
#else
  for (int v = 0; v < VECTORS; v++) {
    const int64_t left = chunk.dim - d - v * LANES;
    const Words low = widened(load_some<Halves>(first + 2 * v * LANES, left));
    to[v] = low | widened(load_some<Halves>(second + 2 * v * LANES, left)) << 16;
  }
#endif
}

// Sums of a panel's numbers from the order in which values of 16 bits are read.
inline void in_order(Floats (&sums)[VECTORS]) {
#if defined(JENGINE_AVX512)
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512 low = (__m512)sums[0], high = (__m512)sums[1];
  sums[0] = (Floats)_mm512_permutex2var_ps(low, first, high);
  sums[1] = (Floats)_mm512_permutex2var_ps(low, second, high);
#else
  (void)sums;
#endif
}

// The values as panels of 32 numbers of the vector, a step for each token or pair of tokens.
template <class Kind>
inline void order_values(HeadChunk& chunk, uint32_t* to) {
  constexpr int64_t steps = CHUNK / Kind::DEPTH;
  for (int64_t d = 0; d < chunk.dim; d += PANEL)
    for (int64_t step = 0; step < steps; step++, to += PANEL) {
      chunk.next_values.fetch(LINES_FOR_PANEL);
      typename Kind::Vector panel[VECTORS];
      read_values(chunk, step, d, panel);
      for (int v = 0; v < VECTORS; v++) store(to + v * LANES, panel[v]);
    }
}

inline void read_head(const char* from, const char* scale_from, Number number, int64_t dim, float* to) {
  if (is_code(number)) return load_head(from, scale_from, number, dim, to);
  for (int64_t d = 0; d < dim; d += LANES)
    store_some(to + d, from_float16(load_some<Halves>(from + 2 * d, dim - d)), dim - d);
}

// Copies a chunk of float16 or of codes as float32.
inline void stage_as_float32(HeadChunk& chunk, Number number, float* to, int64_t* offsets) {
  const int64_t dim = chunk.dim;
  for (int64_t i = 0; i < CHUNK; i++) {
    const int64_t scale = is_code(number) ? chunk.scale_offsets[i] : 0;
    read_head(chunk.keys + chunk.offsets[i], chunk.key_scales + scale, number, dim, to + i * dim);
    read_head(chunk.values + chunk.value_offsets[i], chunk.value_scales + scale, number, dim,
              to + (CHUNK + i) * dim);
    offsets[i] = i * dim * sizeof(float);
  }
  chunk.keys = reinterpret_cast<const char*>(to);
  chunk.values = chunk.keys + CHUNK * dim * sizeof(float);
  chunk.offsets = chunk.value_offsets = offsets;
}

// Lanes with a number that is not finite: those of NaN and infinity have all exponent bits.
template <class Kind>
inline Ints nonfinite(const char* at, int64_t dim) {
  constexpr uint32_t high = 0x7f800000u, low = Kind::DEPTH == 2 ? 0x7f80u : 0u;
  const int64_t words = dim / Kind::DEPTH;
  Ints found{};
  for (int64_t w = 0; w < words; w += LANES) {
    const Words some = load_some<Words>(at + 4 * w, words - w);
    found |= (Ints)((some & high) == high);
    if (low) found |= (Ints)((some & low) == low);
  }
  return found;
}

// Leaves out the values that are not finite and returns their tokens, a bit for each.
//
// A key that a query does not see counts as zero times its value, which would be NaN. So a query's
// result would depend on tokens behind it, and on those of other sequences.
template <class Kind>
inline uint64_t leave_out_nonfinite(HeadChunk& chunk, float* to, int64_t* offsets) {
  static_assert(CHUNK == 64, "a bit for each token");
  const auto value = [&](int64_t i) { return chunk.values + chunk.value_offsets[i]; };
  Ints found{};
  for (int64_t i = 0; i < CHUNK; i++) found |= nonfinite<Kind>(value(i), chunk.dim);
  if (!any(found)) return 0;
  uint64_t left_out = 0;
  const int64_t bytes = chunk.dim / Kind::DEPTH * 4;
  char* copy = reinterpret_cast<char*>(to + CHUNK * chunk.dim);  // where staged values are, if any
  for (int64_t i = 0; i < CHUNK; i++) {
    const bool is_bad = any(nonfinite<Kind>(value(i), chunk.dim));
    if (is_bad) left_out |= uint64_t{1} << i;
    offsets[i] = i * bytes;
    if (is_bad) {
      std::memset(copy + offsets[i], 0, bytes);
    } else {
      std::memmove(copy + offsets[i], value(i), bytes);
    }
  }
  chunk.values = copy;
  chunk.value_offsets = offsets;
  return left_out;
}

}  // namespace jengine
