#include "attention.h"

#include "attention_unit.h"

namespace jengine {
namespace {

// With fewer units than this for each thread, every KV head is a task of its own.
constexpr int64_t ENOUGH_UNITS = 4;

void write_padding(const Attention& call) {
  const int64_t token_bytes = call.heads * call.cache.dim * (call.out_is_bfloat16 ? 2 : 4);
  for (int64_t token = 0; token < call.tokens; token++) {
    if (call.positions[token] >= 0) continue;
    std::memset(call.out + token * token_bytes, 0, token_bytes);
    std::fill_n(call.lse + token * call.heads, call.heads, NOTHING);
  }
}

// Merges the segments of one tile and KV head in their order.
void merge_segments(const Attention& call, const TileSpan& span, const Partials& partials,
                    int64_t tile, int64_t head) {
  const int64_t group = call.group();
  Running whole = partials.at(tile, span.first_segment(), head);
  for (int64_t i = 0; i < call.tile() * group; i++) {
    const int64_t token = tile * call.tile() + i / group;
    if (call.positions[token] < 0) continue;
    for (int64_t s = 1; s < span.segments(); s++)
      whole.merge(i, partials.at(tile, span.first_segment() + s, head));
    write_row(call, {token, head * group + i % group, 0, i, (int32_t)tile}, whole, i);
  }
}

}  // namespace

void attend(Pool& pool, const Attention& call) {
  write_padding(call);
  const AttentionPlan plan(call);
  const Partials partials(call, plan);
  const int64_t kv_heads = call.cache.kv_heads, units = (int64_t)plan.units.size();
  const int64_t split = units >= ENOUGH_UNITS * pool.threads() ? 1 : kv_heads;
  auto run = [&](auto kind, int64_t task) {
    UnitTask<decltype(kind)> unit(call, plan, plan.units[task / split]);
    const int64_t per_task = kv_heads / split, first = task % split * per_task;
    for (int64_t head = first; head < first + per_task; head++) unit.run(head, partials);
  };
  parallel_for(pool, units * split, [&](int64_t task) {
    if (call.cache.number == Number::BFLOAT16) {
      run(Bfloat16{}, task);
    } else {
      run(Float32{}, task);
    }
  });
  if (plan.partials == 0) return;
  parallel_for(pool, call.tiles * kv_heads, [&](int64_t i) {
    const TileSpan& span = plan.spans[i / kv_heads];
    if (span.segments() > 1) merge_segments(call, span, partials, i / kv_heads, i % kv_heads);
  });
}

}  // namespace jengine
