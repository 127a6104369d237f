// A thread of a pool that is busy until its release.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_THREAD_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_THREAD_H_

#include <memory>

#include "service/base/worker_pool.h"
#include "tests/service/support/event.h"

namespace sparseagg::service {

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

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_THREAD_H_
