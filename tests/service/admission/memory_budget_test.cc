#include "service/admission/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

TEST(MemoryBudgetTest, Reservation_ExactlyAtTheLimit_Fits) {
  MemoryBudget budget(100);
  Reservation reservation(&budget);
  EXPECT_TRUE(reservation.Grow(100, "a test").ok());
  EXPECT_EQ(budget.reserved(), 100);
}

TEST(MemoryBudgetTest, Reservation_OneBeyondTheLimit_IsRefusedWithFiguresAndWaysOut) {
  MemoryBudget budget(100);
  Reservation first(&budget);
  ASSERT_TRUE(first.Grow(60, "a test").ok());
  Reservation second(&budget);
  const absl::Status status = second.Grow(41, "an upload");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"an upload", "41", "60", "100", "FIXED_POINT", "--memory-limit"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
  EXPECT_EQ(budget.reserved(), 60);
}

TEST(MemoryBudgetTest, Reservation_AnotherWayAround_IsNamedInPlaceOfFixedPoint) {
  MemoryBudget budget(100);
  Reservation reservation(&budget);
  const absl::Status status = reservation.Grow(UINT64_MAX, "a test", "less is more");
  EXPECT_THAT(status.message(), HasSubstr("a test needs 2^64 or more bytes"));
  EXPECT_THAT(status.message(), HasSubstr("; less is more, or start the server with a larger --memory-limit"));
  EXPECT_THAT(reservation.Grow(101, "a test", "").message(), HasSubstr("; start the server"));
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(MemoryBudgetTest, Reservation_NoLimit_TakesAnything) {
  MemoryBudget budget(0);
  Reservation reservation(&budget);
  EXPECT_TRUE(reservation.Grow(uint64_t{1} << 62, "a test").ok());
}

TEST(MemoryBudgetTest, Reservation_HugeRequest_DoesNotWrap) {
  MemoryBudget budget(100);
  Reservation reservation(&budget);
  ASSERT_TRUE(reservation.Grow(50, "a test").ok());
  EXPECT_FALSE(reservation.Grow(~uint64_t{0}, "a test").ok());
  EXPECT_EQ(budget.reserved(), 50);
}

TEST(MemoryBudgetTest, Reservation_Destroyed_GivesAllBack) {
  MemoryBudget budget(100);
  {
    Reservation reservation(&budget);
    ASSERT_TRUE(reservation.Grow(70, "a test").ok());
    reservation.SetTo(120);  // held already, whatever the limit says
    EXPECT_EQ(budget.reserved(), 120);
    reservation.SetTo(30);
    EXPECT_EQ(budget.reserved(), 30);
  }
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(MemoryBudgetTest, Reservation_OfNothing_FitsThoughMoreIsHeldThanMayBe) {
  MemoryBudget budget(100);
  Reservation held(&budget);
  held.SetTo(120);
  Reservation other(&budget);
  EXPECT_TRUE(other.Grow(0, "a test").ok());
  EXPECT_FALSE(other.Grow(1, "a test").ok());
}

TEST(MemoryBudgetTest, Reservation_Absorbed_IsCountedOnce) {
  MemoryBudget budget(100);
  Reservation all(&budget);
  {
    Reservation part(&budget);
    ASSERT_TRUE(part.Grow(40, "a test").ok());
    all.Absorb(part);
    EXPECT_EQ(part.bytes(), 0);
  }
  EXPECT_EQ(all.bytes(), 40);
  EXPECT_EQ(budget.reserved(), 40);
}

TEST(MemoryBudgetTest, TryReserve_ManyThreads_NeverPassesTheLimit) {
  MemoryBudget budget(1000);
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) taken += budget.TryReserve(3) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 333);
  EXPECT_EQ(budget.reserved(), 999);
}

}  // namespace
}  // namespace sparseagg::service
