// x @ weight with what surrounds it: a norm before, a bias, an activation, a residual after.
#pragma once

#include "functions.h"
#include "rows.h"
#include "tasks.h"

namespace jengine {

// What happens to sums on their way to memory. Where the weight is gated, the activation is the
// gate's; otherwise it is applied to all, after the bias and before the residual.
struct Output {
  char* data;  // [rows, results]
  bool is_bfloat16;
  Activation activation;
  const float* residual;  // [rows, results] or null
  const float* addend;    // [rows, outputs] or null: added to sums as the bias is
};

// Rows that share a weight: an expert's, or all of them.
struct RowGroup {
  int64_t begin, end;  // in `rows`
  const char* weight;
  const float* bias;  // or null
  Scales scales;      // of integers
};

struct Matmul {
  Activations x;
  Weight weight;  // that of every group, apart from its data
  Output out;
  const int32_t* rows;  // the rows that are computed; others are left alone
  const RowGroup* groups;
  int64_t num_groups;

  // So many rows of a group, as the micro kernel takes them.
  RowBlocks blocks(int64_t rows) const { return RowBlocks(rows, most_rows()); }
  int64_t most_rows() const { return weight.in_tiles() ? MOST_TILED_ROWS : MOST_ROWS; }
};

void matmul(Pool& pool, const Matmul& call);

}  // namespace jengine
