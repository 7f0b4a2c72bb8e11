// Divides work among the threads of the calling program, and keeps scratch memory per thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <thread>

#include "vector.h"

namespace jengine {

// The threads of the program that calls the kernels. They may be busy with other work.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual int64_t threads() const = 0;
  virtual void start(std::function<void()> work) = 0;
};

// What waking a thread takes, in nanoseconds, and leaving its core to it. Tests set it to 1.
#ifndef JENGINE_WAKING_NS
#define JENGINE_WAKING_NS 8000
#endif
constexpr int64_t WAKING_NS = JENGINE_WAKING_NS;

// A pool that helps only with work that is worth waking a thread for: a call that takes no longer
// than that is done by the caller, and a core stays free for the program around it.
class Helpers : public Pool {
 public:
  // `nanoseconds`: about how long one thread would need for all of it.
  Helpers(Pool& pool, int64_t nanoseconds) : pool_(pool), worth_(nanoseconds / WAKING_NS) {}
  int64_t threads() const override { return worth_ ? std::min(pool_.threads(), 1 + worth_) : 1; }
  void start(std::function<void()> work) override { pool_.start(std::move(work)); }

 private:
  Pool& pool_;
  const int64_t worth_;
};

// How many others each thread of a call wakes, before it works: the caller does not wake all, and the
// time until the last one runs grows with the logarithm of their number. Waking one takes about as long
// as until it runs, so more than two gain nothing.
constexpr int64_t WOKEN_BY_EACH = 2;

// Tasks that threads claim one by one. A helper that comes when all tasks are claimed touches only
// this object, which it owns together with the others; the pool and the tasks' own data may be gone
// by then.
class Tasks : public std::enable_shared_from_this<Tasks> {
 public:
  Tasks(Pool& pool, int64_t threads, int64_t count, std::function<void(int64_t)> run)
      : pool_(pool), threads_(threads), count_(count), run_(std::move(run)) {}

  void work() { run_from(claim()); }
  // Starts the threads that the one of this number wakes: they are numbered level by level, the
  // caller's number is 0. The pool must be there.
  void wake(int64_t thread) {
    const int64_t first = WOKEN_BY_EACH * thread + 1;
    try {
      for (int64_t next = first; next < std::min(first + WOKEN_BY_EACH, threads_); next++)
        pool_.start([tasks = shared_from_this(), next] { tasks->help(next); });
    } catch (const std::bad_alloc&) {  // those that have begun use this call's data: go on with them
    }
  }
  bool is_done() const { return done_.load(std::memory_order_acquire) >= count_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  int64_t claim() { return claimed_.fetch_add(1, std::memory_order_relaxed); }
  void help(int64_t thread) {
    const int64_t first = claim();
    if (first >= count_) return;
    wake(thread);  // the caller, and so its pool, waits for the claimed task
    run_from(first);
  }
  void run_from(int64_t i) {
    for (; i < count_; i = claim()) {
      try {
        run_(i);
      } catch (...) {  // such as memory that ran out: the caller throws it again
        if (!failed_.test_and_set()) error_ = std::current_exception();
      }
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  Pool& pool_;
  const int64_t threads_, count_;
  const std::function<void(int64_t)> run_;
  alignas(64) std::atomic<int64_t> claimed_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  std::atomic_flag failed_ = ATOMIC_FLAG_INIT;
  std::exception_ptr error_;
};

constexpr int SPINS_BEFORE_YIELDING = 2000;

// Waits for another thread that is known to be running.
template <class Condition>
void wait_until(const Condition& holds) {
  for (int spins = 0; !holds(); spins++) {
    if (spins < SPINS_BEFORE_YIELDING) {
      relax();
    } else {
      std::this_thread::yield();  // there may be more threads than cores
    }
  }
}

// run(0) ... run(count - 1), on this thread and on those of the pool that have time. They are begun
// in this order, so a task may wait for one before it. This thread waits only for tasks that others
// have begun, so a pool without a free thread cannot block it.
template <class Run>
void parallel_for(Pool& pool, int64_t count, const Run& run) {
  const int64_t threads = std::min(count, pool.threads());
  if (threads < 2) {
    for (int64_t i = 0; i < count; i++) run(i);
    return;
  }
  auto tasks = std::make_shared<Tasks>(pool, threads, count, [&run](int64_t i) { run(i); });
  tasks->wake(0);
  tasks->work();
  wait_until([&] { return tasks->is_done(); });
  tasks->rethrow();
}

// Memory of one thread that is kept from call to call and only grows.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  // At least so many bytes, aligned to cache lines; what was there before is gone.
  char* take(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = 0;
      const size_t wanted = (bytes + PAGE - 1) / PAGE * PAGE;
      memory_ = static_cast<char*>(std::aligned_alloc(PAGE, wanted));
      if (!memory_) throw std::bad_alloc();
      size_ = wanted;
    }
    return memory_;
  }

 private:
  static constexpr size_t PAGE = 4096;
  char* memory_ = nullptr;
  size_t size_ = 0;
};

// A call's own memory, which its tasks share, and a task's. A thread that runs tasks of its own
// call needs both at once.
Scratch& call_scratch();
Scratch& task_scratch();

// Cuts one piece of scratch memory into arrays that begin at cache lines.
class Arena {
 public:
  template <class T>
  static size_t bytes(size_t count) {
    return (count * sizeof(T) + 63) / 64 * 64;
  }
  explicit Arena(char* memory) : at_(memory) {}
  template <class T>
  T* array(size_t count) {
    char* found = at_;
    at_ += bytes<T>(count);
    return reinterpret_cast<T*>(found);
  }

 private:
  char* at_;
};

}  // namespace jengine
