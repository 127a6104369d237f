// A InFlightMemory of 100 bytes, whose time passes by hand.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "service/admission/in_flight_memory.h"
#include "service/base/timer.h"
#include "service/base/worker_pool.h"
#include "tests/service/support/event.h"
#include "tests/service/support/manual_clock.h"

namespace sparseagg::service {

class InFlightMemoryTest : public ::testing::Test {
 protected:
  // What the pool still does gives credit back.
  void TearDown() override { pool_.reset(); }

  // Takes credit that must be there at once.
  InFlightReservation Take(uint64_t bytes, Event* called_in = nullptr) {
    InFlightReservation taken;
    in_flight_.Acquire(
        bytes, [&](InFlightReservation credit) { taken = std::move(credit); },
        [called_in] {
          if (called_in != nullptr) called_in->Notify();
        });
    EXPECT_EQ(taken.bytes(), bytes);
    return taken;
  }

  ManualClock clock_;
  Timer timer_{&clock_};
  std::unique_ptr<WorkerPool> pool_ = std::make_unique<WorkerPool>(1);  // may end before the rest
  InFlightMemory in_flight_{100, &clock_, &timer_, pool_.get()};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_IN_FLIGHT_MEMORY_FIXTURE_H_
