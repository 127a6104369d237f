#include "service/admission/memory_shares.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sparseagg::service {
namespace {

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

}  // namespace
}  // namespace sparseagg::service
