// Tasks that run when a lock has been released.
#ifndef SPARSEAGG_SERVICE_BASE_RUN_AFTER_UNLOCK_H_
#define SPARSEAGG_SERVICE_BASE_RUN_AFTER_UNLOCK_H_

#include <functional>
#include <utility>
#include <vector>

namespace sparseagg::service {

// A list of tasks that the destructor runs, in order. Declare it before the lock, so that the lock is released first.
// Not thread-safe.
//
//   RunAfterUnlock after;
//   MutexLock lock(&mu_);
//   after.Add([on_done = std::move(on_done_)] { on_done(); });  // runs without the lock
class RunAfterUnlock {
 public:
  RunAfterUnlock() = default;
  RunAfterUnlock(const RunAfterUnlock&) = delete;
  RunAfterUnlock& operator=(const RunAfterUnlock&) = delete;
  ~RunAfterUnlock() {
    for (auto& task : tasks_) task();
  }
  void Add(std::function<void()> task) { tasks_.push_back(std::move(task)); }

 private:
  std::vector<std::function<void()>> tasks_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_RUN_AFTER_UNLOCK_H_
