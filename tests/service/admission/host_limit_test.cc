#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/admission/memory_shares.h"

namespace sparseagg::service {
namespace {

using Permits = std::vector<std::shared_ptr<const void>>;

// Takes units for connections of a host until it gets none.
Permits TakeAll(HostLimit& limit, const std::string& host) {
  Permits permits;
  while (auto permit = limit.TryAcquire(absl::StrCat(host, ":", permits.size() + 1))) {
    permits.push_back(std::move(permit));
    if (permits.size() > 100) break;
  }
  return permits;
}

TEST(HostLimitTest, OneHost_GetsHalf) {
  HostLimit limit(10);
  const Permits first = TakeAll(limit, "ipv4:127.0.0.1");
  EXPECT_EQ(first.size(), 5);
  EXPECT_EQ(limit.DescribeFull(), "5 calls of one host");
  EXPECT_EQ(TakeAll(limit, "ipv6:%5B::1%5D").size(), 5);  // released at once
  EXPECT_EQ(limit.all().taken(), 5);
}

TEST(HostLimitTest, AllHosts_GetAll) {
  HostLimit limit(10);
  const Permits first = TakeAll(limit, "ipv4:127.0.0.1");
  const Permits second = TakeAll(limit, "ipv4:127.0.0.2");
  EXPECT_EQ(limit.all().taken(), 10);
  EXPECT_EQ(TakeAll(limit, "ipv4:127.0.0.3").size(), 0);
  EXPECT_EQ(limit.DescribeFull(), "10 calls");
}

TEST(HostLimitTest, Released_MayBeTakenAgain) {
  HostLimit limit(4);
  Permits permits = TakeAll(limit, "ipv4:127.0.0.1");
  EXPECT_EQ(permits.size(), 2);
  permits.pop_back();
  EXPECT_EQ(limit.all().taken(), 1);
  EXPECT_EQ(TakeAll(limit, "ipv4:127.0.0.1").size(), 1);
}

TEST(HostLimitTest, UnixSockets_MayHaveAll) {
  HostLimit limit(10);
  EXPECT_EQ(TakeAll(limit, "unix").size(), 10);
}

TEST(HostLimitTest, SmallAndNoLimit) {
  HostLimit one(1);
  EXPECT_EQ(TakeAll(one, "ipv4:127.0.0.1").size(), 1);
  HostLimit none(0);
  EXPECT_GT(TakeAll(none, "ipv4:127.0.0.1").size(), 100);
}

}  // namespace
}  // namespace sparseagg::service
