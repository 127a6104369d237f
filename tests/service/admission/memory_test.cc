// What memory there is, how it is divided, and what calls, hosts and rounds reserve of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/admission/memory_budget.h"
#include "service/admission/memory_shares.h"
#include "service/admission/process_memory.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

class ProcessMemoryTest : public ::testing::Test {
 protected:
  ProcessMemoryTest() { std::filesystem::remove_all(root_); }
  ~ProcessMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_ =
      ::testing::TempDir() + "process_memory_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ProcessMemoryTest, NoGroups_IsTheMachines) { EXPECT_GT(ProcessMemory(root_), 100'000'000); }

TEST_F(ProcessMemoryTest, OwnGroup_Counts) {
  Write("/proc/self/cgroup", "0::/system.slice/sparseagg.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("/sys/fs/cgroup/system.slice/sparseagg.service/memory.max", "5000000\n");
  EXPECT_EQ(ProcessMemory(root_), 5'000'000);
}

TEST_F(ProcessMemoryTest, GroupsAbove_CountIfTheyHaveLess) {
  Write("/proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "5000000\n");
  Write("/sys/fs/cgroup/a/memory.max", "4000000\n");
  Write("/sys/fs/cgroup/x/memory.max", "1000000\n");  // of no group of ours
  EXPECT_EQ(ProcessMemory(root_), 4'000'000);
}

// Its own group is at the top of what it sees, while its path may be that on the host.
TEST_F(ProcessMemoryTest, InAContainer_TheTopCounts) {
  Write("/sys/fs/cgroup/memory.max", "3000000\n");
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(ProcessMemory(root_), 3'000'000);
  Write("/proc/self/cgroup", "0::/kubepods/pod1/c1\n");
  EXPECT_EQ(ProcessMemory(root_), 3'000'000);
}

TEST_F(ProcessMemoryTest, VersionOne_HasItsOwnFiles) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/c\n4:memory:/docker/c1\n");
  Write("/sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "2000000\n");
  EXPECT_EQ(ProcessMemory(root_), 2'000'000);
}

TEST(MemorySharesTest, DivideMemory_SharesAddUpToTheLimit) {
  Limits limits;
  for (const uint64_t mib : {256, 384, 1024, 16384}) {
    limits.memory_limit_bytes = mib << 20;
    const MemoryShares shares = DivideMemory(limits);
    EXPECT_EQ(shares.kept + shares.in_flight + shares.process, mib << 20);
    EXPECT_GE(shares.kept, (mib << 20) / 2 - (uint64_t{1} << 20)) << mib;
    EXPECT_GE(shares.in_flight, 4 * MaxBufferedMessageBytes(limits)) << mib;
  }
}

// Three quarters of a small container's memory are less than the least limit that adds up.
TEST(MemorySharesTest, DefaultMemoryLimit_AnyMachine_SharesAddUpToTheLimit) {
  for (const uint64_t mib : {1, 128, 300, 341, 342, 1024, 16384}) {
    Limits limits;
    limits.memory_limit_bytes = DefaultMemoryLimit(mib << 20);
    const MemoryShares shares = DivideMemory(limits);
    EXPECT_EQ(shares.kept + shares.in_flight + shares.process, limits.memory_limit_bytes) << mib;
  }
  EXPECT_EQ(DefaultMemoryLimit(uint64_t{1024} << 20), uint64_t{768} << 20);
}

TEST(MemorySharesTest, DivideMemory_NoLimitOrTooSmall_BoundsOnlyRounds) {
  Limits limits;
  EXPECT_EQ(DivideMemory(limits).kept, 0);
  EXPECT_EQ(DivideMemory(limits).in_flight, 0);
  limits.memory_limit_bytes = 1'000'000;
  EXPECT_EQ(DivideMemory(limits).kept, 1'000'000);
}

TEST(MemorySharesTest, FitToMemory_LowersConnections) {
  Limits limits;
  const auto most = [&](uint64_t memory_mib, uint64_t max_connections) {
    limits.memory_limit_bytes = memory_mib << 20;
    limits.max_connections = max_connections;
    return FitToMemory(limits).max_connections;
  };
  EXPECT_EQ(most(256, 10'000), 1024);  // 20 KiB each of a quarter of 80 MiB
  EXPECT_EQ(most(256, 0), 1024);
  EXPECT_EQ(most(256, 4), 4);
  EXPECT_EQ(most(0, 10'000), 10'000);
  EXPECT_EQ(most(0, 0), 0);
  EXPECT_EQ(most(100, 7), 7);  // below kMinMemoryLimitBytes
  limits.connection_bytes = kTlsConnectionBytes;
  EXPECT_EQ(most(256, 10'000), 243);
}

// Else one host could have all connections, and nobody else one.
TEST(MemorySharesTest, HostShare_IsAtMostHalfOfWhatThereReallyIs) {
  for (const uint64_t mib : {0, 256, 1024, 16384}) {
    for (const uint64_t wanted : {0, 1, 2, 100, 1'000'000}) {
      Limits limits;
      limits.memory_limit_bytes = mib << 20;
      const uint64_t all = FitHttpConnections(limits, wanted);
      for (const uint64_t per_host : {0, 1, 256, 1'000'000}) {
        const uint64_t most = HostShare(all, per_host);
        EXPECT_GE(most, 1);
        EXPECT_LE(most, std::max<uint64_t>(1, all / 2)) << mib << " " << wanted << " " << per_host;
        EXPECT_TRUE(per_host == 0 || most <= per_host);
      }
    }
  }
  Limits small;
  small.memory_limit_bytes = uint64_t{256} << 20;
  EXPECT_EQ(FitHttpConnections(small, 1000), 121);
  EXPECT_EQ(HostShare(121, 256), 60);
  EXPECT_EQ(HostShare(1000, 256), 256);
  EXPECT_EQ(HostShare(0, 7), 7);
  EXPECT_EQ(HostShare(0), 0);
}

TEST(MemorySharesTest, FitToMemory_OneMessageAndOnePageFitBesideStreams) {
  for (const uint64_t mib : {256, 300, 1024, 16384}) {
    for (const uint64_t wanted : {uint64_t{0}, uint64_t{1000}, uint64_t{4} << 20, uint64_t{128} << 20, UINT64_MAX}) {
      Limits limits;
      limits.memory_limit_bytes = mib << 20;
      limits.max_message_bytes = wanted;
      limits.max_page_bytes = wanted;
      const Limits fitted = FitToMemory(limits);
      const uint64_t in_flight = DivideMemory(fitted).in_flight;
      EXPECT_LE(MaxBufferedMessageBytes(fitted), in_flight / 2) << mib << " " << wanted;
      EXPECT_LE(kJsonFactor * fitted.max_page_bytes, in_flight / 2) << mib << " " << wanted;
      EXPECT_GT(fitted.max_message_bytes, 0);
      EXPECT_GT(fitted.max_page_bytes, 0);
      if (wanted != 0 && wanted <= size_t{4} << 20) {
        EXPECT_EQ(fitted.max_message_bytes, wanted);
        EXPECT_EQ(fitted.max_page_bytes, std::min(wanted, in_flight / 2 / kJsonFactor));
      }
    }
  }
}

TEST(MemorySharesTest, FitToMemory_NoLimit_ChangesNothing) {
  Limits limits;
  limits.max_message_bytes = 0;
  limits.max_page_bytes = UINT64_MAX;
  EXPECT_EQ(FitToMemory(limits).max_message_bytes, 0);
  EXPECT_EQ(FitToMemory(limits).max_page_bytes, UINT64_MAX);
  EXPECT_EQ(PageInFlightBytes(UINT64_MAX), UINT64_MAX);
}

TEST(MemorySharesTest, FitToMemory_LowersTensors) {
  const auto most = [](uint64_t memory_mib, uint64_t max_tensors) {
    Limits limits;
    limits.memory_limit_bytes = memory_mib << 20;
    limits.max_tensors = max_tensors;
    return FitToMemory(limits).max_tensors;
  };
  EXPECT_EQ(most(256, 0), 5120);  // 4 KiB each of a quarter of 80 MiB
  EXPECT_EQ(most(256, 10'000), 5120);
  EXPECT_EQ(most(256, 1000), 1000);
  EXPECT_EQ(most(0, 0), 0);
  EXPECT_EQ(most(0, 10'000), 10'000);
}

TEST(MemorySharesTest, MaxBufferedMessageBytes_HugeMessages_DoNotWrap) {
  Limits limits;
  limits.max_message_bytes = UINT64_MAX;
  EXPECT_EQ(MaxBufferedMessageBytes(limits), UINT64_MAX);
  limits.memory_limit_bytes = 1;  // below kMinMemoryLimitBytes
  EXPECT_EQ(DivideMemory(limits).in_flight, UINT64_MAX);
}

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
  for (const char* part : {"an upload", "41", "60", "100", "BINNED", "--memory-limit"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
  EXPECT_EQ(budget.reserved(), 60);
}

TEST(MemoryBudgetTest, Reservation_AnotherWayAround_IsNamedInPlaceOfBinned) {
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
