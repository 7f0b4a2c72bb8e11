// Matrices of low rank, a pair per slot: out[row] = base[row] + (x[row] @ down[slot]) @ up[slot].
#pragma once

#include "rows.h"
#include "tasks.h"

namespace jengine {

constexpr int64_t LOW_RANK_COLUMNS = 64;  // that share an entry of `ranges`

struct LowRank {
  const char* x;  // [rows, inputs]
  bool is_bfloat16;
  int64_t rows, inputs, rank, outputs;
  Number number;     // of the matrices
  const char* down;  // [slots, rank, inputs]
  const char* up;    // [slots, rank, outputs]
  const int32_t* slots;  // [rows] from 1 on; 0: none
  int64_t num_slots;
  // [column blocks, 2]: the first rank that is not zero there in any slot, and the one after the
  // last; or null.
  const int32_t* ranges;
  const float* base;  // [rows, outputs] or null
  float* out;         // [rows, outputs]
};

// A row's sums run in one order, whatever rows there are besides.
void multiply_low_rank(Pool& pool, const LowRank& call);

}  // namespace jengine
