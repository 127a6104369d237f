// What only a GPU can show. Without one these tests are skipped, visibly, and say what is then not covered: everything
// else of cuda/ runs in the ordinary tests, on the host device. And which drivers are taken.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_engine.h"
#include "cuda/device/device.h"
#include "cuda/device_engine.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"

namespace sparseagg::testing {
namespace {

using cuda::CheckDriver;
using cuda::DriverRelease;

#define SKIP_WITHOUT_A_GPU(what)                                                \
  if (const absl::Status status = CudaStatus(); !status.ok()) {                 \
    GTEST_SKIP() << "not covered here: " << (what) << ". " << status.message(); \
  }

TEST(RealDevice, ContractSuite_RunsOnIt) {
  SKIP_WITHOUT_A_GPU("the contract and differential suites of sparseagg_host_test on a GPU");
  bool is_there = false;
  for (const EngineCase& engine : AvailableEngines()) is_there |= engine.name == "cuda";
  EXPECT_TRUE(is_there);
}

TEST(RealDevice, CubSortAndSelect_KeepTheDeviceContract) {
  SKIP_WITHOUT_A_GPU("cub::DeviceRadixSort::SortPairs and cub::DeviceSelect::Flagged");
  // DeviceContract/cuda, of device_test.cc, has the tests.
}

TEST(RealDevice, CompiledKernels_RoundAsOnTheHost) {
  SKIP_WITHOUT_A_GPU("code that nvcc made of the kernel bodies: contraction, intrinsics, barriers, atomics");
  uint64_t num_done = 0;
  for (uint64_t seed = TestSeed(90'000), end = seed + TestCases(300); seed < end; ++seed) {
    const Case c = RandomCase(seed);
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    options.tuning.staging_buffer_bytes = 4096;
    auto device = cuda::CreateCudaDevice();
    ASSERT_TRUE(device.ok()) << device.status();
    cuda::DeviceEngine engine(*std::move(device), options);
    ASSERT_EQ(Disagreement(c.specs, Drive(engine, c.specs, c.submissions, {.shuffle_seed = seed}),
                           Judge(c.specs, c.submissions)),
              "")
        << "SPARSEAGG_TEST_SEED=" << seed << "\n"
        << Describe(c);
    ASSERT_TRUE(engine.Probe().ok()) << engine.Probe();
    ASSERT_EQ(engine.use().num_fallbacks, 0u);
    num_done += engine.use().num_done;
  }
  EXPECT_GT(num_done, 0u);
}

TEST(RealDevice, Streams_OverlapWithoutRaces) {
  SKIP_WITHOUT_A_GPU("streams, events, pinned copies and the memory pool, under true concurrency");
  // Many batches, so that copies of one run beside the work on another.
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 1'000'000;
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(4));
  for (int i = 0; i < 40; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, 50'000, KeyStyle::kZipf, KeyOrder::kShuffled);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({"client " + std::to_string(i), 1.0, {std::move(raw)}});
  }
  const Verdict verdict = Judge({spec}, submissions);
  for (const size_t budget_mib : {64, 128, 1024}) {
    cuda::DeviceEngineOptions options;
    options.memory_budget_bytes = budget_mib << 20;
    options.tuning.staging_buffer_bytes = size_t{1} << 20;
    auto device = cuda::CreateCudaDevice();
    ASSERT_TRUE(device.ok()) << device.status();
    cuda::DeviceEngine engine(*std::move(device), options);
    for (int again = 0; again < 5; ++again) {
      ASSERT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), verdict), "");
    }
    ASSERT_TRUE(engine.Probe().ok()) << engine.Probe();
    EXPECT_GE(engine.use().num_done, 5u);
    EXPECT_EQ(engine.use().num_fallbacks, 0u);
  }
}

TEST(RealDevice, WithoutADevice_CreationSaysWhy) {
  const absl::Status status = CudaStatus();
  if (status.ok()) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(status.message().empty());
}

TEST(DriverCheckTest, CheckDriver_SameMajorVersionOrNewer_Ok) {
  for (const int driver : {13000, 13010, 14000}) {
    EXPECT_EQ(CheckDriver(driver, 13000, "580.65.06"), absl::OkStatus());
    EXPECT_EQ(CheckDriver(driver, 13020, ""), absl::OkStatus());
  }
}

TEST(DriverCheckTest, CheckDriver_Older_SaysWhatWasFoundAndWhatIsNeeded) {
  EXPECT_EQ(CheckDriver(12040, 13000, "550.54.15"),
            absl::UnavailableError("no usable GPU: the NVIDIA driver 550.54.15 is for CUDA 12.4, and the CUDA engine "
                                   "needs a driver for CUDA 13, which is R580 or later; the CPU engine works without"));
  EXPECT_EQ(CheckDriver(12090, 14000, ""),
            absl::UnavailableError("no usable GPU: the NVIDIA driver is for CUDA 12.9, and the CUDA engine needs a "
                                   "driver for CUDA 14; the CPU engine works without"));
}

TEST(DriverCheckTest, CheckDriver_None_SaysSo) {
  EXPECT_EQ(CheckDriver(0, 13000, ""), absl::UnavailableError("no usable GPU: this machine has no NVIDIA driver"));
}

TEST(DriverCheckTest, DriverRelease_BothKindsOfModule_IsRead) {
  const std::string path = ::testing::TempDir() + "/driver_check_test." + std::to_string(getpid());
  for (const std::string line :
       {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:28:49 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"}) {
    std::ofstream(path) << line << "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    EXPECT_EQ(DriverRelease(path), "580.65.06");
  }
  unlink(path.c_str());
  EXPECT_EQ(DriverRelease(path), "");
}

}  // namespace
}  // namespace sparseagg::testing
