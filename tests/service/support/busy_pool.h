// A worker pool that is kept busy.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_POOL_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_POOL_H_

#include <memory>

#include "service/base/worker_pool.h"
#include "tests/service/support/event.h"

namespace sparseagg::service {

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_BUSY_POOL_H_
