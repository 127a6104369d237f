// A test fixture: an InFlightMemory of 100 bytes with a manual clock.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "service/admission/in_flight_memory.h"
#include "service/base/clock.h"
#include "service/base/worker_pool.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {

class InFlightMemoryTest : public ::testing::Test {
 protected:
  // Tasks that the pool still runs release reservations.
  void TearDown() override { pool_.reset(); }

  // Reserves bytes that must be free.
  InFlightReservation Take(uint64_t bytes, Event* reclaimed = nullptr) {
    InFlightReservation taken;
    in_flight_.Acquire(
        bytes, [&](InFlightReservation reservation) { taken = std::move(reservation); },
        [reclaimed] {
          if (reclaimed != nullptr) reclaimed->Notify();
        });
    EXPECT_EQ(taken.bytes(), bytes);
    return taken;
  }

  ManualClock clock_;
  Timer timer_{&clock_};
  std::unique_ptr<WorkerPool> pool_ = std::make_unique<WorkerPool>(1);  // a test may destroy it first
  InFlightMemory in_flight_{100, &clock_, &timer_, pool_.get()};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_
