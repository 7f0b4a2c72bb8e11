#include "attention.h"

#include "attention_unit.h"

namespace jengine {
namespace {

// With fewer units than this for each thread, every KV head is a task of its own.
constexpr int64_t ENOUGH_UNITS = 4;
// So are the KV heads of a unit with more query rows than this: it reads keys less than it computes.
constexpr int64_t MOST_ROWS_WITH_ALL_HEADS = 16;

void write_padding(const Attention& call) {
  const int64_t token_bytes = call.heads * call.cache.dim * (call.out_is_bfloat16 ? 2 : 4);
  for (int64_t token = 0; token < call.tokens; token++) {
    if (call.positions[token] >= 0) continue;
    std::memset(call.out + token * token_bytes, 0, token_bytes);
    std::fill_n(call.lse + token * call.heads, call.heads, NOTHING);
  }
}

struct Task {
  const Unit* unit;
  Heads heads;
};

void list_tasks(const Attention& call, const AttentionPlan& plan, int64_t threads,
                std::vector<Task>& tasks) {
  const int64_t heads = call.cache.kv_heads;
  tasks.clear();
  for (int64_t i = 0; i < plan.size(); i++) {
    const Unit& unit = plan.unit(i);
    const bool split = plan.size() < ENOUGH_UNITS * threads ||
                       unit.queries * call.group() > MOST_ROWS_WITH_ALL_HEADS;
    const int64_t step = split ? 1 : heads;
    for (int64_t head = 0; head < heads; head += step) tasks.push_back({&unit, {head, head + step}});
  }
}

}  // namespace

void attend(Pool& pool, const Attention& call) {
  write_padding(call);
  thread_local AttentionPlan own_plan;  // they keep their memory
  thread_local std::vector<Task> own_tasks;
  AttentionPlan& plan = own_plan;
  std::vector<Task>& tasks = own_tasks;
  plan.make(call);
  list_tasks(call, plan, pool.threads(), tasks);
  const Partials partials(call, plan);
  const int64_t count = tasks.size();
  parallel_for(pool, count, [&](int64_t i) {
    const Task& task = tasks[i];
    const int64_t later = i + pool.threads();
    const Unit* next = later < count ? tasks[later].unit : nullptr;
    if (call.cache.number == Number::BFLOAT16 && may_use_tiles()) {
      UnitTask<PairsInTiles>(call, plan, *task.unit, task.heads, next).run(partials);
    } else if (call.cache.number == Number::BFLOAT16) {
      UnitTask<Bfloat16>(call, plan, *task.unit, task.heads, next).run(partials);
    } else {
      UnitTask<Float32>(call, plan, *task.unit, task.heads, next).run(partials);
    }
  });
}

}  // namespace jengine
