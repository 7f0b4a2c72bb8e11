// Counts which thread of a call wakes how many others; see test_threads.py.
#include <cstdio>

#include "queue_pool.h"

using namespace jengine;

thread_local int64_t started = 0;  // by this thread
std::atomic<int64_t> all_started{0};

class CountingPool : public QueuePool {
 public:
  using QueuePool::QueuePool;
  void start(std::function<void()> work) override {
    started++;
    all_started++;
    QueuePool::start(std::move(work));
  }
};

// A task for each thread, which ends when all of them have begun: so all threads come.
void count_wakes(int64_t threads) {
  CountingPool pool(threads);
  std::atomic<int64_t> begun{0};
  started = all_started = 0;
  parallel_for(pool, threads, [&](int64_t) {
    begun++;
    wait_until([&] { return begun == threads; });
  });
  std::printf("%d %d %d\n", (int)threads, (int)started, (int)all_started.load());
}

// Runs what it is given only after the call that gave it, when nothing may use the pool.
class LatePool : public Pool {
 public:
  int64_t threads() const override { return 64; }
  void start(std::function<void()> work) override {
    if (is_over_) std::printf("used after the call\n");
    waiting_.push_back(std::move(work));
  }
  void end() {
    is_over_ = true;
    for (const auto& work : waiting_) work();
  }

 private:
  bool is_over_ = false;
  std::vector<std::function<void()>> waiting_;
};

// Small tasks that end before most helpers have come.
int64_t sum_of_many_calls() {
  QueuePool pool(7);
  int64_t sum = 0;
  for (int call = 0; call < 2000; call++) {
    std::vector<int64_t> done(9);
    parallel_for(pool, 9, [&](int64_t i) { done[i] += i; });
    for (int64_t one : done) sum += one;
  }
  return sum;
}

int main() {
  for (int64_t threads : {1, 2, 3, 4, 5, 17, 64}) count_wakes(threads);
  LatePool late;
  int64_t done = 0;
  parallel_for(late, 100, [&](int64_t) { done++; });
  late.end();
  std::printf("%d\n%d\n", (int)done, (int)sum_of_many_calls());
}
