// The device for NVIDIA GPUs, and the engine over it, on a runtime that is not CUDA's: what they ask of the runtime, in
// what order, and what they make of its errors. device_test.cc is part of this program, with the device contract.
#include "cuda/device/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "tests/cuda/device/fake_runtime/fake_runtime.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"

namespace sparseagg::testing {
namespace {

using cuda::CudaDevice;
using cuda::Lane;
using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Runtime() = {}; }
  void TearDown() override {
    EXPECT_EQ(Runtime().num_live, 0) << "memory, pools, streams or events were not given back";
    Runtime() = {};
  }
};

TEST_F(CudaDeviceTest, Create_DeviceWorks_ItIsThere) {
  Runtime().current_device = 3;
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  ASSERT_NE(*device, nullptr);
  EXPECT_EQ((*device)->description(), "Fake GPU, compute capability 9.0, 1 GiB, driver for CUDA 13.0");
  EXPECT_EQ((*device)->memory_bytes(), Runtime().memory_bytes / 10 * 9);
  EXPECT_EQ(Runtime().current_device, 3) << "the caller's device was not restored";
}

// An error of CUB's first use stays with the process.
TEST_F(CudaDeviceTest, Create_UsesEveryAlgorithmOnce) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(Runtime().num_sorts_of_32_bits, 1u);
  EXPECT_EQ(Runtime().num_sorts_of_64_bits, 1u);
  EXPECT_EQ(Runtime().num_selects, 3u) << "the heads of both sorts' segments, and by flags";
}

TEST_F(CudaDeviceTest, HostMemory_IsElsewhereAndPinnedIfCudaSaysSo) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  const int memory = 0;
  EXPECT_EQ((*device)->Elsewhere(&memory), "memory that CUDA does not know");
  EXPECT_FALSE((*device)->IsPinned(&memory, sizeof(memory)));
  Runtime().all_pinned = true;
  EXPECT_EQ((*device)->Elsewhere(&memory), "host memory that CUDA has pinned");
  EXPECT_TRUE((*device)->IsPinned(&memory, sizeof(memory)));
}

TEST_F(CudaDeviceTest, Create_AnyCallFails_UnavailableWithTheReason) {
  Runtime().num_calls = 0;
  ASSERT_TRUE(cuda::CreateCudaDevice().ok());
  const uint64_t num_calls = Runtime().num_calls;
  uint64_t num_refusals = 0;
  for (uint64_t at_call = 1; at_call <= num_calls; ++at_call) {
    SCOPED_TRACE(absl::StrCat("call ", at_call));
    Runtime() = {};
    Runtime().fail_at_call = at_call;
    Runtime().current_device = 3;
    const auto device = cuda::CreateCudaDevice();
    // What fails while things are given back is nobody's concern.
    if (device.ok()) continue;
    ++num_refusals;
    EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable) << device.status();
    EXPECT_THAT(device.status().message(), HasSubstr("made to fail"));
    EXPECT_EQ(Runtime().current_device, 3) << "the caller's device was not restored";
    EXPECT_EQ(Runtime().num_live, 0);
  }
  EXPECT_GE(num_refusals, 12u);
}

TEST_F(CudaDeviceTest, Create_NothingToUse_UnavailableWithTheReason) {
  Runtime().driver = 0;
  EXPECT_EQ(cuda::CreateCudaDevice().status(),
            absl::UnavailableError("no usable GPU: this machine has no NVIDIA driver"));
  Runtime() = {};
  Runtime().num_devices = 0;
  EXPECT_EQ(cuda::CreateCudaDevice().status(), absl::UnavailableError("no usable GPU: the driver sees none"));
  Runtime() = {};
  Runtime().has_pools = false;
  EXPECT_EQ(cuda::CreateCudaDevice().status(), absl::UnavailableError("no usable GPU: Fake GPU has no memory pools"));
}

TEST_F(CudaDeviceTest, Enter_RestoresTheCallersDevice) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  Runtime().current_device = 2;
  ASSERT_TRUE((*device)->Enter().ok());
  EXPECT_EQ(Runtime().current_device, 0);
  (*device)->Leave();
  EXPECT_EQ(Runtime().current_device, 2);
}

TEST_F(CudaDeviceTest, OutOfMemory_ResourceExhaustedOnce_DeviceStaysInUse) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  for (const bool pinned : {false, true}) {
    const auto allocate_and_free = [&]() -> absl::Status {
      if (pinned) return (*device)->AllocatePinned(100).status();
      const absl::StatusOr<void*> d_memory = (*device)->Allocate(100, Lane::kCompute);
      if (d_memory.ok()) (*device)->Free(*d_memory, Lane::kCompute);
      return d_memory.status();
    };
    Runtime().fail_at_call = Runtime().num_calls + 1;
    Runtime().fail_at_call_too = Runtime().num_calls + 9;  // after the waits and the trim of the pool
    Runtime().error = cudaErrorMemoryAllocation;
    const absl::Status status = allocate_and_free();
    Runtime().fail_at_call_too = 0;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("cudaErrorMemoryAllocation: out of memory (cuda"));
    EXPECT_THAT(status.message(), HasSubstr(" at cuda_device.cc:"));
    EXPECT_EQ(Runtime().last_error, cudaSuccess) << "the next launch would report it again";
    EXPECT_EQ(allocate_and_free(), absl::OkStatus());
  }
}

TEST_F(CudaDeviceTest, OutOfMemoryUntilThePoolIsTrimmed_NoError) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  Runtime().fail_at_call = Runtime().num_calls + 1;
  Runtime().error = cudaErrorMemoryAllocation;
  const absl::StatusOr<void*> memory = (*device)->Allocate(100, Lane::kCompute);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(Runtime().num_trims, 1u);
  EXPECT_EQ(Runtime().last_error, cudaSuccess) << "the next launch would report it again";
  (*device)->Free(*memory, Lane::kCompute);
}

TEST_F(CudaDeviceTest, OtherErrors_InternalWithNameCallAndPlace) {
  const auto device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  Runtime().fail_at_call = Runtime().num_calls + 1;
  const absl::Status status = (*device)->AwaitLane(Lane::kCopy);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("cudaErrorUnknown: made to fail (cudaStreamQuery"));
  EXPECT_THAT(status.message(), HasSubstr(" at cuda_device.cc:"));
}

// A device that hangs is left alone: its memory with all that it may still write to, and its work.
class HungDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Runtime() = {}; }
  void TearDown() override { Runtime() = {}; }
};

TEST_F(HungDeviceTest, AnyWaitNeverEnds_ResultIsThatOfTheReference_DeviceIsNotUsedAgain) {
  const Case c = RandomCase(TestSeed(71'000));
  const Verdict verdict = Judge(c.specs, c.submissions);
  uint64_t num_hangs = 0;
  for (uint64_t at_call = 1; at_call < 2000; at_call += 1 + at_call / 8) {
    SCOPED_TRACE(absl::StrCat("call ", at_call));
    Runtime() = {};
    auto device = CudaDevice::Create(std::chrono::milliseconds(1));
    ASSERT_TRUE(device.ok()) << device.status();
    Runtime().hangs_at_call = Runtime().num_calls + at_call;
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    auto engine = std::make_unique<cuda::DeviceEngine>(*std::move(device), options);
    ASSERT_EQ(Disagreement(c.specs, Drive(*engine, c.specs, c.submissions), verdict), "");
    if (engine->Probe().ok()) continue;
    ++num_hangs;
    EXPECT_EQ(engine->Probe().code(), absl::StatusCode::kUnavailable) << engine->Probe();
    EXPECT_THAT(engine->Probe().message(), HasSubstr("the device hangs: no answer within 1 ms"));
    const uint64_t num_calls = Runtime().num_calls;
    ASSERT_EQ(Disagreement(c.specs, Drive(*engine, c.specs, c.submissions), verdict), "");
    engine.reset();
    EXPECT_EQ(Runtime().num_calls, num_calls) << "a device that hangs was asked for more";
  }
  EXPECT_GE(num_hangs, 10u);
}

TEST_F(HungDeviceTest, NoMemory_TheWaitForWhatWasFreedHasAnEnd) {
  const auto device = CudaDevice::Create(std::chrono::milliseconds(1));
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::StatusOr<void*> before = (*device)->Allocate(100, Lane::kCompute);
  ASSERT_TRUE(before.ok()) << before.status();
  (*device)->Free(*before, Lane::kCompute);
  Runtime().fail_at_call = Runtime().num_calls + 1;
  Runtime().error = cudaErrorMemoryAllocation;
  Runtime().hangs_at_call = Runtime().num_calls + 2;
  const absl::Status status = (*device)->Allocate(100, Lane::kCompute).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the device hangs: no answer within 1 ms"));
  EXPECT_EQ(Runtime().num_trims, 0u);
}

TEST_F(CudaDeviceTest, Engine_RandomCases_EqualTheReference) {
  const uint64_t first = TestSeed(70'000);
  for (uint64_t seed = first; seed < first + TestCases(50); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    const Case c = RandomCase(seed);
    auto device = cuda::CreateCudaDevice();
    ASSERT_TRUE(device.ok()) << device.status();
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    cuda::DeviceEngine engine(*std::move(device), options);
    ASSERT_EQ(Disagreement(c.specs, Drive(engine, c.specs, c.submissions, {.shuffle_seed = seed}),
                           Judge(c.specs, c.submissions)),
              "")
        << Describe(c);
    EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
  }
}

// As a program makes it.
TEST_F(CudaDeviceTest, CreateCudaEngine_ProbesAndDescribesItself) {
  const auto engine = cuda::CreateCudaEngine();
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE((*engine)->Probe().ok());
  EXPECT_THAT((*engine)->description(), HasSubstr("Fake GPU"));
}

}  // namespace
}  // namespace sparseagg::testing
