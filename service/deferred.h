// What has to be done once a lock is released.
#ifndef SPARSEAGG_SERVICE_DEFERRED_H_
#define SPARSEAGG_SERVICE_DEFERRED_H_

#include <functional>
#include <utility>
#include <vector>

namespace sparseagg::service {

// Declared before the lock, so that it is destroyed after it: runs its tasks then, in order.
class Deferred {
 public:
  Deferred() = default;
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  ~Deferred() {
    for (auto& task : tasks_) task();
  }
  void Add(std::function<void()> task) { tasks_.push_back(std::move(task)); }

 private:
  std::vector<std::function<void()>> tasks_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_DEFERRED_H_
