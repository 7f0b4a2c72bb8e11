// Attention from pages: softmax(q @ keys) @ values, with keys and values where the cache has them.
//
// Keys are taken in chunks at absolute positions, and runs of chunks, segments, are merged in
// order. So a query's result does not depend on the queries that share its keys, nor on tasks or
// threads.
#pragma once

#include "cache_codes.h"
#include "tasks.h"

namespace jengine {

constexpr int64_t CHUNK = 64;     // keys between two updates of the running softmax
constexpr int64_t SEGMENT = 512;  // keys that one task takes at most

// One layer's planes.
struct KeysAndValues : PlaneShape {
  const char* keys;
  const char* values;
};

struct Attention {
  const char* q;  // [tokens, heads, dim]
  bool q_is_bfloat16;
  int64_t tokens, heads;
  KeysAndValues cache;
  // Tiles of tokens / tiles queries, each of one sequence: its blocks, the first at position start.
  int64_t tiles, pages;
  const int32_t* tables;     // [tiles, pages]
  const int32_t* starts;     // [tiles]
  const int32_t* positions;  // [tokens]; -1 is padding
  const int32_t* ends;       // [tiles] keys that there are at most, or null
  int64_t window;            // 0: all earlier tokens
  float scale, soft_cap;     // soft_cap 0: none
  const float* sinks;        // [heads] or null
  char* out;                 // [tokens, heads, dim]
  bool out_is_bfloat16;
  float* lse;  // [tokens, heads]

  int64_t tile() const { return tokens / tiles; }
  int64_t group() const { return heads / cache.kv_heads; }
  // The first and the last key, exclusive, that a query at this position sees.
  int64_t first_key(int64_t position) const {
    return window && position >= window ? position - window + 1 : 0;
  }
  int64_t end_of_keys(int64_t tile, int64_t position) const {
    return ends ? std::min<int64_t>(position + 1, ends[tile]) : position + 1;
  }
};

void attend(Pool& pool, const Attention& call);

}  // namespace jengine
