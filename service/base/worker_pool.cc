#include "service/base/worker_pool.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

WorkerPool::WorkerPool(int num_threads) {
  threads_.reserve(num_threads);
  try {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    Stop();
    throw std::system_error(error.code(), absl::StrCat(started, " of ", num_threads, " worker threads (--threads)"));
  }
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
  changed_.Signal();
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopped_) changed_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace sparseagg::service
