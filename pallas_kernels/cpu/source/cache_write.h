// Writes keys and values into the paged cache, after the norms and the rotation of a model.
#pragma once

#include "cache_codes.h"
#include "rows.h"
#include "tasks.h"

namespace jengine {

// One layer's planes, in place.
struct CachePlanes : PlaneShape {
  char* keys;
  char* values;
};

// k and v are [tokens, kv_heads, dim]. A slot outside the planes is skipped.
struct CacheWrite {
  CachePlanes cache;
  const float *k, *v;
  const int32_t* slots;
  int64_t tokens;
};
// Zeros in large pages, by all threads: what is mapped at first touch is mapped once.
void clear_cache(Pool& pool, char* memory, int64_t bytes);
void write_cache(const CacheWrite& call);

// What the norms of queries and keys are over: each head, or all heads of a token as one vector.
enum class NormScope : int32_t { NONE = 0, HEAD = 1, WHOLE = 2 };

// qkv is [tokens, kv_heads, group + 2, dim]: per KV head its queries, its key and its value.
struct RotateAndWrite {
  CachePlanes cache;
  const float* qkv;
  const int32_t* slots;
  int64_t tokens, group;
  const float *cos, *sin;  // [tokens, pairs] or null: for the first 2 * pairs numbers of a head
  int64_t pairs;
  NormScope norms;
  const float *q_norm, *k_norm;  // weights: [dim] of HEAD, [heads, dim] of WHOLE
  float eps;
  float* q;  // [tokens, kv_heads * group, dim]
};
void rotate_and_write(Pool& pool, const RotateAndWrite& call);

}  // namespace jengine
