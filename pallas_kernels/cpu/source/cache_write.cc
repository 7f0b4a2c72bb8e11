#include "cache_write.h"

#include "large_pages.h"

namespace jengine {
namespace {

constexpr int64_t TOKENS_OF_TASK = 8, TOKENS_FOR_ONE_THREAD = 32;

Halves rounded(Number number, Floats values) {
  return number == Number::BFLOAT16 ? to_bfloat16(values) : to_float16(values);
}

void store_numbers(char* to, Number number, const float* values, int64_t count) {
  if (number == Number::FLOAT32) {
    std::memcpy(to, values, count * sizeof(float));
    return;
  }
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    store(to + 2 * i, rounded(number, load<Floats>(values + i)));
  for (; i < count; i++) {
    const uint16_t bits = rounded(number, splat(values[i]))[0];
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
}

// Some heads of a token, one after the other.
void store_heads(const CachePlanes& cache, char* plane, int64_t slot, int64_t first,
                 const float* heads, int64_t count) {
  char* to = plane + cache.place(slot) + first * cache.head_bytes();
  if (!is_code(cache.number)) return store_numbers(to, cache.number, heads, count * cache.dim);
  char* scales = plane + cache.scale_place(slot) + cache.scales_of_head(first);
  for (int64_t h = 0; h < count; h++)
    store_head(to + h * cache.head_bytes(), scales + cache.scales_of_head(h), cache.number,
               heads + h * cache.dim, cache.dim);
}

bool is_inside(const CachePlanes& cache, int64_t slot) {
  return slot >= 0 && slot < cache.blocks * cache.block_size;
}

// The two halves of the rotated part are the coordinates of `pairs` points.
void rotate(float* head, const float* cos, const float* sin, int64_t pairs) {
  float *first = head, *second = head + pairs;
  int64_t i = 0;
  for (; i + LANES <= pairs; i += LANES) {
    const Floats x = load<Floats>(first + i), y = load<Floats>(second + i);
    const Floats c = load<Floats>(cos + i), s = load<Floats>(sin + i);
    store(first + i, x * c - y * s);
    store(second + i, y * c + x * s);
  }
  for (; i < pairs; i++) {
    const float x = first[i], y = second[i];
    first[i] = x * cos[i] - y * sin[i];
    second[i] = y * cos[i] + x * sin[i];
  }
}

// Norms and rotation of some heads of a token, which are contiguous.
void prepare(const RotateAndWrite& call, float* heads, int64_t count, const float* norm,
             int64_t token) {
  const int64_t dim = call.cache.dim;
  if (call.norms == NormScope::WHOLE)
    normalize(heads, count * dim, {NormKind::RMS, norm, nullptr, call.eps});
  for (int64_t h = 0; h < count; h++) {
    float* head = heads + h * dim;
    if (call.norms == NormScope::HEAD)
      normalize(head, dim, {NormKind::RMS, norm, nullptr, call.eps});
    if (call.cos)
      rotate(head, call.cos + token * call.pairs, call.sin + token * call.pairs, call.pairs);
  }
}

void one_token(const RotateAndWrite& call, int64_t token, float* keys) {
  const int64_t kv_heads = call.cache.kv_heads, dim = call.cache.dim, members = call.group + 2;
  const float* from = call.qkv + token * kv_heads * members * dim;
  float* queries = call.q + token * kv_heads * call.group * dim;
  for (int64_t h = 0; h < kv_heads; h++) {
    const float* head = from + h * members * dim;
    std::memcpy(queries + h * call.group * dim, head, call.group * dim * sizeof(float));
    std::memcpy(keys + h * dim, head + call.group * dim, dim * sizeof(float));
  }
  prepare(call, queries, kv_heads * call.group, call.q_norm, token);
  if (!is_inside(call.cache, call.slots[token])) return;
  prepare(call, keys, kv_heads, call.k_norm, token);
  const int64_t slot = call.slots[token];
  store_heads(call.cache, call.cache.keys, slot, 0, keys, kv_heads);
  for (int64_t h = 0; h < kv_heads; h++)
    store_heads(call.cache, call.cache.values, slot, h, from + (h * members + members - 1) * dim, 1);
}

}  // namespace

void clear_cache(Pool& pool, char* memory, int64_t bytes) {
  constexpr int64_t part = 16 << 20;
  advise_large_pages(memory, bytes);
  parallel_for(pool, (bytes + part - 1) / part, [&](int64_t i) {
    std::memset(memory + i * part, 0, std::min(part, bytes - i * part));
  });
}

void write_cache(const CacheWrite& call) {
  const int64_t width = call.cache.width(), heads = call.cache.kv_heads;
  for (int64_t token = 0; token < call.tokens; token++) {
    const int64_t slot = call.slots[token];
    if (!is_inside(call.cache, slot)) continue;
    store_heads(call.cache, call.cache.keys, slot, 0, call.k + token * width, heads);
    store_heads(call.cache, call.cache.values, slot, 0, call.v + token * width, heads);
  }
}

void rotate_and_write(Pool& pool, const RotateAndWrite& call) {
  auto run = [&](int64_t first, int64_t last) {
    float* keys = reinterpret_cast<float*>(
        task_scratch().take(call.cache.width() * sizeof(float)));
    for (int64_t token = first; token < last; token++) one_token(call, token, keys);
  };
  if (call.tokens <= TOKENS_FOR_ONE_THREAD) return run(0, call.tokens);
  const int64_t tasks = (call.tokens + TOKENS_OF_TASK - 1) / TOKENS_OF_TASK;
  parallel_for(pool, tasks, [&](int64_t i) {
    run(i * TOKENS_OF_TASK, std::min((i + 1) * TOKENS_OF_TASK, call.tokens));
  });
}

}  // namespace jengine
