// Threads that start together.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_ON_THREADS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_ON_THREADS_H_

#include <thread>
#include <vector>

#include "tests/service/support/event.h"

namespace sparseagg::service {

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_ON_THREADS_H_
