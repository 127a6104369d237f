// What has to be done once a lock is released.
#ifndef SPARSEAGG_SERVICE_BASE_RUN_AFTER_UNLOCK_H_
#define SPARSEAGG_SERVICE_BASE_RUN_AFTER_UNLOCK_H_

#include <functional>
#include <utility>
#include <vector>

namespace sparseagg::service {

// Declared before the lock, so that it is destroyed after it: runs its tasks then, in order.
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
