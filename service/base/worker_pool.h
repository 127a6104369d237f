// The threads that do the server's work: decoding, validating, preparing, merging, building pages.
#ifndef SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_
#define SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sparseagg::service {

// First in, first out. Threads of our own rather than a oneTBB arena, because a thread that waits inside a parallel
// loop may be given another task of its arena: a commit that merges under a round's lock would then run a second
// commit to the same round on top of itself, and wait for itself for ever. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int num_threads);
  ~WorkerPool();  // runs what has been posted, then joins
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> task);
  int num_threads() const { return static_cast<int>(threads_.size()); }

 private:
  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_WORKER_POOL_H_
