// Cache writes and attention as functions that XLA calls, over one layer of a cache group.
//
// The cache is [layers, 2, blocks, block_size, kv_heads * dim], codes having room for two bytes more a
// head: plane 0 has keys, plane 1 values.
#include "attention.h"
#include "cache_write.h"
#include "ffi.h"

namespace jengine {
namespace {

// An array of bytes holds codes: signed ones are int8, unsigned ones FP8.
Number cached_number_of(const AnyBuffer& cache) {
  switch (cache.element_type()) {
    case DataType::S8: return Number::INT8;
    case DataType::U8: return Number::FP8;
    default: return number_of(cache);
  }
}

struct Layer {
  char *keys, *values;
  PlaneShape shape;

  Layer(const AnyBuffer& cache, const AnyBuffer& layer, int64_t dim) {
    const Number number = cached_number_of(cache);
    require(cache.dimensions().size() == 5 && dimension(cache, 1) == 2, "wrong cache shape");
    const int64_t head = dim + (is_code(number) ? SCALE_BYTES : 0);
    require(dim > 0 && dimension(cache, 4) % head == 0, "the cache has heads of another size");
    shape = {number, dimension(cache, 2), dimension(cache, 3), dimension(cache, 4) / head, dim};
    require(layer.element_count() == 1, "the layer must be one number");
    const int64_t index = *integers_of(layer);
    require(index >= 0 && index < dimension(cache, 0), "the cache does not have this layer");
    const int64_t plane = shape.blocks * shape.block_bytes();
    keys = static_cast<char*>(cache.untyped_data()) + index * 2 * plane;
    values = keys + plane;
  }
  CachePlanes planes() const { return {shape, keys, values}; }
};

void refuse_copy(const AnyBuffer& cache, const AnyBuffer& result) {
  require(cache.untyped_data() == result.untyped_data(), "the cache must be written in place");
}

void handle_empty(XlaPool pool, Result cache) {
  const int64_t bytes = cache->element_count() * size_of(cached_number_of(*cache));
  clear_cache(pool, static_cast<char*>(cache->untyped_data()), bytes);
}

void handle_write(AnyBuffer cache, AnyBuffer layer, AnyBuffer k, AnyBuffer v, AnyBuffer slots,
                  Result out, int64_t dim) {
  refuse_copy(cache, *out);
  const CachePlanes planes = Layer(*out, layer, dim).planes();
  const int64_t tokens = slots.element_count(), count = tokens * planes.width();
  write_cache({planes, floats_of(k, count), floats_of(v, count), integers_of(slots), tokens});
}

// How many weights a norm of heads with `width` numbers in all has.
int64_t norm_weights(NormScope scope, int64_t dim, int64_t width) {
  return scope == NormScope::NONE ? 0 : scope == NormScope::HEAD ? dim : width;
}

void handle_rotate(XlaPool pool, AnyBuffer cache, AnyBuffer layer, AnyBuffer qkv, AnyBuffer slots,
                   AnyBuffer cos, AnyBuffer sin, AnyBuffer q_norm, AnyBuffer k_norm, Result out,
                   Result q, int32_t norm, float eps, float offset) {
  refuse_copy(cache, *out);
  require(qkv.dimensions().size() == 4, "qkv must be [tokens, kv_heads, group + 2, dim]");
  const int64_t tokens = dimension(qkv, 0), dim = dimension(qkv, 3);
  const int64_t group = dimension(qkv, 2) - 2;
  const CachePlanes planes = Layer(*out, layer, dim).planes();
  require(group > 0 && dimension(qkv, 1) == planes.kv_heads, "qkv has another number of heads");
  require((int64_t)slots.element_count() == tokens, "a slot for each token");
  const int64_t pairs = is_given(cos) ? dimension(cos, 1) : 0;
  require(2 * pairs <= dim, "a rotation cannot be wider than a head");
  const NormScope scope = one_of(norm, NormScope::WHOLE, "norm must be 0, 1 or 2");
  const int64_t whole = planes.width();
  require((int64_t)q_norm.element_count() == norm_weights(scope, dim, whole * group) &&
              (int64_t)k_norm.element_count() == norm_weights(scope, dim, whole),
          "norm weights of another size");
  const AsFloats q_weight(q_norm, offset), k_weight(k_norm, offset);
  float* queries = const_cast<float*>(floats_of(*q, tokens * whole * group));
  rotate_and_write(pool, {planes, floats_of(qkv, tokens * whole / dim * (group + 2) * dim),
                          integers_of(slots), tokens, group,
                          pairs ? floats_of(cos, tokens * pairs) : nullptr,
                          pairs ? floats_of(sin, tokens * pairs) : nullptr, pairs,
                          scope, q_weight.data(), k_weight.data(), eps, queries});
}

// About how long attention without a window takes one thread, in nanoseconds.
int64_t duration(const AnyBuffer& positions, int64_t width) {
  constexpr int64_t MULTIPLY_ADDS_PER_NS = 40;
  int64_t keys = 0;
  for (size_t i = 0; i < positions.element_count(); i++) keys += integers_of(positions)[i] + 1;
  return keys * 2 * width / MULTIPLY_ADDS_PER_NS;
}

void handle_attention(XlaPool pool, AnyBuffer q, AnyBuffer cache, AnyBuffer layer, AnyBuffer tables,
                      AnyBuffer starts, AnyBuffer positions, AnyBuffer ends, AnyBuffer sinks,
                      Result out, Result lse, int64_t window, float scale, float soft_cap) {
  require(q.dimensions().size() == 3, "q must be [tokens, heads, dim]");
  const int64_t tokens = dimension(q, 0), heads = dimension(q, 1), dim = dimension(q, 2);
  const Layer own(cache, layer, dim);
  require(own.shape.number != Number::BFLOAT16 || dim % 2 == 0, "heads of bfloat16 need an even size");
  require(heads > 0 && heads % own.shape.kv_heads == 0, "heads must be a multiple of the KV heads");
  const int64_t tiles = dimension(tables, 0);
  require(tiles > 0 && tokens % tiles == 0, "tokens must be a multiple of the tiles");
  require((int64_t)starts.element_count() == tiles, "a start for each tile");
  require((int64_t)positions.element_count() == tokens, "a position for each token");
  require(!is_given(ends) || (int64_t)ends.element_count() == tiles, "an end for each tile");
  require(window >= 0, "a window cannot be negative");
  require((int64_t)out->element_count() == tokens * heads * dim, "wrong result shape");
  const AsFloats sink_floats(sinks);
  require(!is_given(sinks) || (int64_t)sinks.element_count() == heads, "a sink for each head");
  Helpers helpers(pool, duration(positions, heads * dim));
  attend(helpers, {bytes_of(q), is_bfloat16(q), tokens, heads,
                   {own.shape, own.keys, own.values},
                   tiles, dimension(tables, 1), integers_of(tables), integers_of(starts),
                   integers_of(positions), is_given(ends) ? integers_of(ends) : nullptr, window, scale, soft_cap, sink_floats.data(),
                   static_cast<char*>(out->untyped_data()), is_bfloat16(*out),
                   const_cast<float*>(floats_of(*lse, tokens * heads))});
}

}  // namespace
}  // namespace jengine

JENGINE_HANDLER(empty_cache, jengine::handle_empty)
JENGINE_HANDLER(write_cache, jengine::handle_write, "dim")
JENGINE_HANDLER(rotate_and_write, jengine::handle_rotate, "norm", "eps", "offset")
JENGINE_HANDLER(attention, jengine::handle_attention, "window", "scale", "soft_cap")
