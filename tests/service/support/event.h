// An event that happens once.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_EVENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_EVENT_H_

#include <condition_variable>
#include <mutex>

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_EVENT_H_
