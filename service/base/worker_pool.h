// The threads that do the server's work: decode, validate, prepare, merge, make pages.
#ifndef SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_
#define SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// A fixed number of threads that run tasks first in, first out.
//
// Not a oneTBB arena, because oneTBB may give a thread that waits inside a parallel loop another task of its arena. A
// commit that merges under a round's lock would then run a second commit to the same round, and wait for itself for
// ever.
//
// Owned by ServerContext. Thread-safe.
class WorkerPool {
 public:
  // Throws: std::system_error if the system does not start so many threads.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();  // calls Stop
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `task` on a thread of the pool, after all tasks posted before have begun. Never blocks for long.
  void Post(std::function<void()> task);
  // Runs the tasks that have been posted, and ends the threads. A task that is posted meanwhile may
  // run; one that is posted after the return never does. Call it on one thread at a time.
  // Blocks: until all have run, and what they own is destroyed.
  void Stop();
  int num_threads() const { return static_cast<int>(threads_.size()); }

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_
