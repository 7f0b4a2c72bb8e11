// A pool for tests, without XLA.
#pragma once

#include <condition_variable>
#include <mutex>
#include <queue>
#include <vector>

#include "tasks.h"

namespace jengine {

// Threads that take work from a queue.
class QueuePool : public Pool {
 public:
  explicit QueuePool(int64_t threads) : threads_(threads) {
    for (int64_t i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
  }
  ~QueuePool() override {
    {
      std::lock_guard<std::mutex> hold(lock_);
      stops_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  int64_t threads() const override { return threads_; }
  void start(std::function<void()> work) override {
    {
      std::lock_guard<std::mutex> hold(lock_);
      waiting_.push(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> hold(lock_);
      wake_.wait(hold, [this] { return stops_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::function<void()> next = std::move(waiting_.front());
      waiting_.pop();
      hold.unlock();
      next();
    }
  }

  const int64_t threads_;
  std::vector<std::thread> workers_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> waiting_;
  bool stops_ = false;
};

}  // namespace jengine
