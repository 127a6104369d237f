// An event that happens once, threads that start together, and threads of a pool that are busy.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_THREADS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_THREADS_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "service/base/worker_pool.h"

namespace sparseagg::service {

// Not absl::Notification: the thread sanitizer does not see the order that an Abseil built without it establishes.
// Thread-safe.
class Event {
 public:
  void Notify() {
    std::lock_guard lock(mu_);
    happened_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mu_);
    while (!happened_) changed_.wait(lock);
  }
  bool HasHappened() {
    std::lock_guard lock(mu_);
    return happened_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool happened_ = false;
};

// Runs `body(t)` on `count` threads that start together, and waits for them.
template <typename Body>
void OnThreads(int count, Body body) {
  Event start;
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      start.Wait();
      body(t);
    });
  }
  start.Notify();
  for (std::thread& thread : threads) thread.join();
}

// Keeps all threads of a pool busy until Release, or until it goes.
class BusyPool {
 public:
  explicit BusyPool(WorkerPool& pool) {
    // A copy for each thread, which may wake up, or even begin to wait, when the test is over.
    for (int i = 0; i < pool.num_threads(); ++i) pool.Post([release = release_] { release->Wait(); });
  }
  ~BusyPool() { Release(); }
  BusyPool(const BusyPool&) = delete;
  BusyPool& operator=(const BusyPool&) = delete;

  void Release() { release_->Notify(); }

 private:
  const std::shared_ptr<Event> release_ = std::make_shared<Event>();
};

class BusyThread {
 public:
  // Busy on return.
  explicit BusyThread(WorkerPool& pool) {
    const auto busy = std::make_shared<Event>();
    pool.Post([busy, go_on = go_on_] {
      busy->Notify();
      go_on->Wait();
    });
    busy->Wait();
  }
  ~BusyThread() { Release(); }
  BusyThread(const BusyThread&) = delete;
  BusyThread& operator=(const BusyThread&) = delete;

  void Release() { go_on_->Notify(); }

 private:
  const std::shared_ptr<Event> go_on_ = std::make_shared<Event>();
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_THREADS_H_
