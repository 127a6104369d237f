// What the engine relies on in a device, for every one there is: the host device, the same at its worst, and a GPU.
#include "cuda/device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_engine.h"
#include "cuda/merge/sorter.h"
#include "cuda/transfer/session.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using cuda::Device;
using cuda::DeviceBuffer;
using cuda::Lane;
using cuda::Session;

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> create;
};

void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.name; }

std::vector<DeviceCase> Devices() {
  std::vector<DeviceCase> devices = {
      {"host", [] { return std::make_unique<cuda::HostDevice>(); }},
      {"torture",
       [] { return std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = TestSeed(31)}); }}};
  if (CudaStatus().ok()) {
    devices.push_back({"cuda", [] { return *cuda::CreateCudaDevice(); }});
  }
  return devices;
}

class DeviceContract : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = GetParam().create();
    ASSERT_TRUE(device_->Enter().ok());
    session_ = std::make_unique<Session>(*device_, size_t{1} << 30, TinyTuning());
  }
  void TearDown() override {
    session_->Settle();
    EXPECT_EQ(session_->memory().used_bytes(), 0u);
    session_.reset();
    device_->Leave();
  }

  template <typename T>
  DeviceBuffer Send(const std::vector<T>& data) {
    DeviceBuffer buffer = *session_->memory().Allocate(data.size() * sizeof(T), Lane::kCopy);
    EXPECT_TRUE(session_->staging().CopyIn(buffer.get(), 0, {data.data(), 0, buffer.bytes()}).ok());
    EXPECT_TRUE(session_->staging().Flush().ok());
    EXPECT_TRUE(session_->Join(Lane::kCompute, Lane::kCopy).ok());
    buffer.HandTo(Lane::kCompute);
    return buffer;
  }
  template <typename T>
  std::vector<T> Receive(const DeviceBuffer& buffer, size_t count) {
    std::vector<T> data(count);
    EXPECT_TRUE(session_->CopyOut(data.data(), buffer.get(), count * sizeof(T)).ok());
    return data;
  }

  template <typename Key>
  void TestSort(uint32_t count, int key_bits, uint64_t seed) {
    SCOPED_TRACE(::testing::Message() << count << " keys of " << key_bits << " bits");
    Rng rng(seed);
    std::vector<Key> keys(count);
    const uint64_t few = 1 + rng.Below(count);  // so that some come twice
    std::vector<Key> palette(few);
    for (Key& key : palette) key = static_cast<Key>(key_bits == 64 ? rng.Bits() : rng.Below(uint64_t{1} << key_bits));
    for (Key& key : keys) key = palette[rng.Below(few)];
    std::vector<uint32_t> expected(count);
    std::iota(expected.begin(), expected.end(), 0u);
    std::stable_sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
    std::vector<uint32_t> heads;
    for (uint32_t i = 0; i < count; ++i) {
      if (i == 0 || keys[expected[i]] != keys[expected[i - 1]]) heads.push_back(i);
    }

    auto sorted = cuda::StartSort(*session_, Send(keys), count, sizeof(Key), key_bits);
    ASSERT_TRUE(sorted.ok()) << sorted.status();
    ASSERT_EQ(session_->FinishSelect(sorted->heads), absl::OkStatus());
    EXPECT_EQ(Receive<uint32_t>(sorted->d_positions, count), expected) << "not stable, or not sorted";
    const std::vector<Key> sorted_keys = Receive<Key>(sorted->d_keys, count);
    EXPECT_TRUE(std::is_sorted(sorted_keys.begin(), sorted_keys.end()));
    ASSERT_EQ(sorted->heads.count, heads.size());
    EXPECT_EQ(Receive<uint32_t>(sorted->heads.d_indices, heads.size()), heads);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> session_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, ::testing::ValuesIn(Devices()),
                         [](const auto& device_case) { return device_case.param.name; });

TEST_P(DeviceContract, StagingRing_AnyPieces_ArriveWhole) {
  const uint64_t seed = TestSeed(5);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<uint8_t> data(1 + rng.Below(3000));
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(rng.Bits());
    DeviceBuffer buffer = *session_->memory().Allocate(data.size(), Lane::kCopy);
    std::vector<std::vector<uint8_t>> lents;
    for (size_t at = 0; at < data.size();) {
      const size_t piece = std::min<size_t>(1 + rng.Below(700), data.size() - at);
      std::vector<uint8_t> lent(data.begin() + at, data.begin() + at + piece);
      ASSERT_TRUE(session_->staging().Stage(buffer.get(), at, lent.data(), piece).ok());
      if (rng.Coin()) {
        lents.push_back(std::move(lent));
      } else {
        ASSERT_TRUE(session_->staging().Flush().ok());
        std::fill(lent.begin(), lent.end(), uint8_t{0});  // the ring has taken what it needs
      }
      at += piece;
    }
    ASSERT_TRUE(session_->staging().Flush().ok());
    ASSERT_TRUE(session_->Join(Lane::kCompute, Lane::kCopy).ok());
    buffer.HandTo(Lane::kCompute);
    EXPECT_EQ(Receive<uint8_t>(buffer, data.size()), data);
  }
}

TEST_P(DeviceContract, CopyWithinAndFill_HappenInOrderOfTheLane) {
  const std::vector<uint32_t> data = {1, 2, 3, 4};
  const DeviceBuffer from = Send(data);
  const DeviceBuffer to = *session_->Allocate(from.bytes());
  ASSERT_TRUE(device_->Fill(to.get(), 0xff, to.bytes(), Lane::kCompute).ok());
  ASSERT_TRUE(device_->CopyWithin(to.get(), from.get(), 8, Lane::kCompute).ok());
  ASSERT_TRUE(device_->Fill(from.get(), 0, from.bytes(), Lane::kCompute).ok());
  EXPECT_EQ(Receive<uint32_t>(to, 4), (std::vector<uint32_t>{1, 2, ~0u, ~0u}));
}

TEST_P(DeviceContract, Sort_AnySizeAndKeyBits_IsStable_AndSegmentsAreFound) {
  const uint64_t seed = TestSeed(6);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  for (const uint32_t count : {1u, 2u, 31u, 32u, 33u, 255u, 256u, 257u, 4095u, 4097u, 100'000u}) {
    for (const int key_bits : {1, 7, 8, 17, 24, 31, 32}) TestSort<uint32_t>(count, key_bits, seed + count);
    for (const int key_bits : {1, 33, 40, 63, 64}) TestSort<uint64_t>(count, key_bits, seed + count);
  }
}

TEST_P(DeviceContract, Sort_NoKeyBits_KeepsTheOrder) { TestSort<uint32_t>(100, 0, 1); }

TEST_P(DeviceContract, Select_AnySize_IndicesAscend) {
  Rng rng(TestSeed(8));
  for (const uint32_t count : {1u, 31u, 33u, 1000u, 70'001u}) {
    std::vector<uint8_t> flags(count);
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < count; ++i) {
      flags[i] = rng.OneIn(3) ? 1 : 0;
      if (flags[i] != 0) expected.push_back(i);
    }
    const auto selection = session_->Select(Send(flags), count);
    ASSERT_TRUE(selection.ok()) << selection.status();
    ASSERT_EQ(selection->count, expected.size());
    EXPECT_EQ(Receive<uint32_t>(selection->d_indices, expected.size()), expected);
  }
}

TEST_P(DeviceContract, Allocation_IsAligned_AndComesBack) {
  for (int i = 0; i < 100; ++i) {
    const DeviceBuffer buffer = *session_->Allocate(1 + 1000 * i);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 256, 0u);
    EXPECT_EQ(session_->memory().used_bytes(), buffer.bytes());
  }
}

TEST(DeviceMemory, BeyondTheBudget_ResourceExhausted_AndNothingIsTaken) {
  cuda::HostDevice device;
  cuda::DeviceMemory memory(device, 1000);
  const DeviceBuffer most = *memory.Allocate(900, Lane::kCompute);
  EXPECT_TRUE(absl::IsResourceExhausted(memory.Allocate(101, Lane::kCompute).status()));
  EXPECT_TRUE(memory.Allocate(100, Lane::kCompute).ok());
  EXPECT_EQ(memory.used_bytes(), 900u);
}

TEST(HostDevice, AtItsWorst_WorkWaitsUntilSomeoneWaitsForIt) {
  int num_late = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    cuda::HostDevice device({.torture_seed = seed});
    void* const d_memory = *device.Allocate(1, Lane::kCopy);
    uint8_t byte = 1;
    ASSERT_TRUE(device.CopyIn(d_memory, &byte, 1, Lane::kCopy).ok());
    byte = 2;  // too early: nobody waited
    ASSERT_TRUE(device.AwaitLane(Lane::kCopy).ok());
    num_late += *static_cast<uint8_t*>(d_memory) == 2;
    device.Free(d_memory, Lane::kCopy);
  }
  EXPECT_GT(num_late, 0);
  EXPECT_LT(num_late, 200) << "and sometimes it does not wait";
}

// Events stay with the device, so an attempt that gets no memory must not make any.
TEST(StagingRing, NoPinnedMemory_NothingIsLeftBehind) {
  class NoPinnedMemory : public cuda::HostDevice {
   public:
    absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t) override {
      return absl::ResourceExhaustedError("made to have none");
    }
    absl::StatusOr<cuda::EventId> CreateEvent() override {
      ++num_events;
      return HostDevice::CreateEvent();
    }
    int num_events = 0;
  };
  NoPinnedMemory device;
  Session session(device, size_t{1} << 20, TinyTuning());
  char bytes[1000] = {};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const CopyPiece piece = {bytes, bytes, sizeof(bytes)};
    EXPECT_EQ(session.staging().CopyOut({&piece, 1}).code(), absl::StatusCode::kResourceExhausted);
    ASSERT_TRUE(session.staging().Stage(bytes, 0, bytes, 1).ok());
    EXPECT_EQ(session.staging().Flush().code(), absl::StatusCode::kResourceExhausted);
    session.Settle();  // as after every failed operation
  }
  EXPECT_EQ(device.num_events, 0);
}

}  // namespace
}  // namespace sparseagg::testing
