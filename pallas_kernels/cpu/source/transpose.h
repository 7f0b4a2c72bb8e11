// Brings rows of numbers into the order in which the micro kernel reads a panel.
#pragma once

#include "micro_kernel.h"

namespace jengine {

constexpr int RUN = 16;  // columns that are brought into order together: half a panel

#if defined(JENGINE_AVX512)
// Turns 16 rows of 16 words into 16 columns, in registers.
inline void transpose(__m512i (&rows)[RUN]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {  // b[i + 4 j] has columns i, i + 4, ... of rows 4 j to 4 j + 3
    const __m512i even_top = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    const __m512i odd_top = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    const __m512i even_end = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    const __m512i odd_end = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(even_top, even_end, 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(odd_top, odd_end, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(even_top, even_end, 0xdd);
    rows[i + 12] = _mm512_shuffle_i32x4(odd_top, odd_end, 0xdd);
  }
}

// The same to memory, columns `pitch` words apart, of which those of some rows are written.
inline void transpose_square(__m512i (&rows)[RUN], uint32_t* to, int64_t pitch,
                             __mmask16 written = 0xffff) {
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < RUN; i++) _mm512_mask_storeu_epi32(to + i * pitch, written, rows[i]);
}
#endif

// to[w * PANEL + i] = word w of row i, for 16 rows. A row that is null is zero. What is `ahead`
// bytes behind each row is fetched meanwhile.
inline void transpose_words(const char* const* rows, int64_t words, uint32_t* to,
                            int64_t ahead = 0) {
  int64_t done = 0;
#if defined(JENGINE_AVX512)
  for (; done + RUN <= words; done += RUN) {
    __m512i square[RUN];
    for (int i = 0; ahead && i < RUN; i++)
      if (rows[i]) prefetch(rows[i] + 4 * done + ahead);
    for (int i = 0; i < RUN; i++)
      square[i] = rows[i] ? _mm512_loadu_si512(rows[i] + 4 * done) : _mm512_setzero_si512();
    transpose_square(square, to + done * PANEL, PANEL);
  }
#endif
  for (int i = 0; i < RUN; i++) {
    for (int64_t w = done; w < words; w++) {
      uint32_t word = 0;
      if (rows[i]) std::memcpy(&word, rows[i] + 4 * w, sizeof word);
      to[w * PANEL + i] = word;
    }
  }
}

// to[w * count + r] = word w of row r, for up to 16 rows, `pitch` words apart.
inline void interleave_rows(const uint32_t* rows, int count, int64_t pitch, int64_t words,
                            uint32_t* to) {
  int64_t done = 0;
#if defined(JENGINE_AVX512)
  const __mmask16 written = (__mmask16)((1u << count) - 1);
  for (; done + RUN <= words; done += RUN) {
    __m512i square[RUN];
    for (int r = 0; r < RUN; r++)
      square[r] = r < count ? _mm512_loadu_si512(rows + r * pitch + done) : _mm512_setzero_si512();
    transpose_square(square, to + done * count, count, written);
  }
#endif
  for (int r = 0; r < count; r++)
    for (int64_t w = done; w < words; w++) to[w * count + r] = rows[r * pitch + w];
}

// 16 pairs of bfloat16, one of each row; either row may be null, which is zero.
inline void interleave(const char* low, const char* high, uint32_t* to) {
  for (int v = 0; v < RUN; v += LANES) {
    Words word{};
    if (low) word = widened(load<Halves>(low + 2 * v));
    if (high) word |= widened(load<Halves>(high + 2 * v)) << 16;
    store(to + v, word);
  }
}

}  // namespace jengine
