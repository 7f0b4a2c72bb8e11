// Scores and mixtures of a few queries, straight from pages: keys and values are brought into order
// in registers. A score and a mixture are summed as by the micro kernel, so their bits are the same.
#pragma once

#include "attention_keys.h"

namespace jengine {

#if defined(JENGINE_AVX512)
constexpr int MOST_FEW = 6;

// scores [ROWS][CHUNK] of the keys [begin, end), a multiple of 16 each; the query is [words][ROWS],
// zero from the last word on up to a multiple of 16.
template <class Kind, int ROWS>
void score_few(HeadChunk& chunk, const uint32_t* query, int64_t words, int64_t begin,
               int64_t end, float* scores) {
  const int64_t lines = LINES_FOR_SQUARE * CHUNK / (end - begin);
  for (int64_t token = begin; token < end; token += RUN) {
    Floats sums[ROWS] = {};
    const char* rows[RUN];
    for (int i = 0; i < RUN; i++) rows[i] = chunk.keys + chunk.offsets[token + i];
    for (int64_t word = 0; word < words; word += RUN) {
      chunk.next_keys.fetch(lines);
      __m512i square[RUN];
      read_keys(rows, word, words - word, square);
      const uint32_t* left = query + word * ROWS;
#pragma GCC unroll 16
      for (int w = 0; w < RUN; w++)
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++)
          sums[r] = Kind::add(sums[r], left[w * ROWS + r], (typename Kind::Vector)square[w]);
    }
    for (int r = 0; r < ROWS; r++) store(scores + r * CHUNK + token, sums[r]);
  }
}

// mixed [ROWS][pitch] += weights [ROWS][CHUNK / DEPTH] * values, from step `begin` on; PANELS
// panels from the number d on.
template <class Kind, int ROWS, int PANELS>
inline void mix_panels(HeadChunk& chunk, const uint32_t* weights, int64_t begin, int64_t end,
                       int64_t d, float* mixed, int64_t pitch) {
  constexpr int64_t stride = CHUNK / Kind::DEPTH;
  const int64_t lines = LINES_FOR_PANEL * PANELS * stride / (end - begin);
  Floats sums[ROWS][PANELS][VECTORS];
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PANELS; p++)
      for (int v = 0; v < VECTORS; v++)
        sums[r][p][v] = load<Floats>(mixed + r * pitch + d + p * PANEL + v * LANES);
  for (int64_t step = begin; step < end; step++) {
    chunk.next_values.fetch(lines);
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++) {
      typename Kind::Vector panel[VECTORS];
      read_values(chunk, step, d + p * PANEL, panel);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
          sums[r][p][v] = Kind::add(sums[r][p][v], weights[r * stride + step], panel[v]);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PANELS; p++)
      for (int v = 0; v < VECTORS; v++)
        store(mixed + r * pitch + d + p * PANEL + v * LANES, sums[r][p][v]);
}
template <class Kind, int ROWS>
void mix_few(HeadChunk& chunk, const uint32_t* weights, int64_t begin, int64_t end,
             float* mixed, int64_t pitch) {
  int64_t d = 0;
  for (; d + PANEL < chunk.dim; d += 2 * PANEL)
    mix_panels<Kind, ROWS, 2>(chunk, weights, begin, end, d, mixed, pitch);
  if (d < chunk.dim) mix_panels<Kind, ROWS, 1>(chunk, weights, begin, end, d, mixed, pitch);
}

using ScoreFew = void (*)(HeadChunk&, const uint32_t*, int64_t, int64_t, int64_t, float*);
using MixFew = void (*)(HeadChunk&, const uint32_t*, int64_t, int64_t, float*, int64_t);
struct FewKernels {
  ScoreFew score;
  MixFew mix;
};
template <class Kind, size_t... ROW>
constexpr std::array<FewKernels, sizeof...(ROW)> few_kernels(std::index_sequence<ROW...>) {
  return {FewKernels{score_few<Kind, ROW + 1>, mix_few<Kind, ROW + 1>}...};
}
template <class Kind>
inline const FewKernels& few_kernels_for(int64_t rows) {
  static constexpr auto table = few_kernels<Kind>(std::make_index_sequence<MOST_FEW>{});
  return table[rows - 1];
}
#else
constexpr int MOST_FEW = 0;
#endif

}  // namespace jengine
