#include "service/admission/count_limit.h"

#include <gtest/gtest.h>

#include <utility>

namespace sparseagg::service {
namespace {

TEST(CountLimitTest, TryAcquire_LimitReached_RefusesUntilAPermitIsReleased) {
  CountLimit limit(2);
  ASSERT_TRUE(limit.TryAcquire());
  Permit first(&limit);
  ASSERT_TRUE(limit.TryAcquire());
  Permit second(&limit);
  EXPECT_FALSE(limit.TryAcquire());
  Permit moved = std::move(first);
  EXPECT_EQ(limit.taken(), 2);
  moved.Release();
  moved.Release();
  EXPECT_EQ(limit.taken(), 1);
}

}  // namespace
}  // namespace sparseagg::service
