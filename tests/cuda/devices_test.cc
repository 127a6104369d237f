// One engine over several devices: ranges of keys side by side, and what happens when a device fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "cuda/merge/slab_merge.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/values.h"

namespace sparseagg::testing::devices {
namespace {

struct Round {
  TensorSpec spec;
  std::vector<RawSubmission> submissions;
};

// Keys ascend, unless `shuffled`.
Round MakeRound(Op op, ResultLayout layout, bool shuffled = false) {
  Round round;
  round.spec.name = "t";
  round.spec.num_rows = 200;
  round.spec.row_width = 2;
  AggregationSpec& a = round.spec.aggregation;
  a.op = op;
  a.weighting = Weighting::kByWeight;
  a.result_layout = layout;
  a.return_counts = true;
  a.min_contributors = 2;
  Rng rng(TestSeed(11));
  for (int i = 0; i < 9; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, round.spec.num_rows, 60, KeyStyle::kZipf,
                          shuffled ? KeyOrder::kShuffled : KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, DType::kFloat32, raw.keys.size() * 2, ValueStyle::kUnit);
    round.submissions.push_back({std::to_string(i), 1.0 + i % 3, {std::move(raw)}});
  }
  return round;
}

cuda::DeviceEngineOptions Options() {
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  options.cpu.num_threads = 1;
  return options;
}

// An engine over devices of which each may fail.
struct ManyDevices {
  explicit ManyDevices(const std::vector<FaultPlan>& plans, cuda::FallbackReport report = {}) : records(plans.size()) {
    std::vector<std::unique_ptr<cuda::Device>> devices;
    for (size_t i = 0; i < plans.size(); ++i) {
      const cuda::HostDeviceOptions host{.torture_seed = TestSeed(5 + i), .ordinal = static_cast<int>(i)};
      devices.push_back(std::make_unique<FaultyDevice>(host, plans[i], &records[i]));
    }
    cuda::DeviceEngineOptions options = Options();
    options.on_fallback = std::move(report);
    engine = std::make_unique<cuda::DeviceEngine>(std::move(devices), options);
  }

  std::string Disagrees(const Round& round) const {
    return Disagreement({round.spec}, Drive(*engine, {round.spec}, round.submissions),
                        Judge({round.spec}, round.submissions));
  }

  std::vector<struct FaultyDevice::Record> records;
  std::unique_ptr<cuda::DeviceEngine> engine;
};

TEST(Devices, EachMergesARangeOfKeys_AndNoOtherWorkIsDone) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean}) {
    for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense, ResultLayout::kAuto}) {
      const Round round = MakeRound(op, layout);
      for (size_t num_devices = 1; num_devices <= 3; ++num_devices) {
        SCOPED_TRACE(absl::StrCat(Describe(round.spec), ", devices ", num_devices));
        const ManyDevices devices{std::vector<FaultPlan>(num_devices)};
        EXPECT_EQ(devices.Disagrees(round), "");
        for (const auto& record : devices.records) EXPECT_GT(record.num_launches, 0u);
        EXPECT_EQ(devices.engine->use().num_done, num_devices);
        for (const DeviceState& state : devices.engine->devices()) {
          EXPECT_EQ(state.num_operations, 1u);
          EXPECT_GT(state.sent_bytes, 0u);
        }
        EXPECT_EQ(devices.engine->use().num_fallbacks, 0u);
      }
    }
  }
}

TEST(Devices, KeysDoNotAscend_RoundsGoToTheDevicesInTurn) {
  const Round round = MakeRound(Op::kSum, ResultLayout::kAuto, /*shuffled=*/true);
  const ManyDevices devices{std::vector<FaultPlan>(3)};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(devices.Disagrees(round), "");
    for (size_t other = 0; other < 3; ++other) EXPECT_EQ(devices.records[other].num_launches > 0, other <= i);
  }
}

TEST(Devices, Parts_HaveAboutAsManyTuplesEach) {
  const Round round = MakeRound(Op::kSum, ResultLayout::kSparse);
  Rng rng(TestSeed(12));
  std::vector<std::vector<uint32_t>> keys;
  std::vector<ValidatedUpdate> updates;
  TensorSpec spec = round.spec;
  spec.num_rows = 1'000'000;
  spec.aggregation.op = Op::kUnion;
  for (int i = 0; i < 20; ++i) {
    const auto drawn = RandomKeys(rng, spec.num_rows, 5000, KeyStyle::kZipf, KeyOrder::kSortedUnique);
    UpdateColumns columns;
    columns.keys = absl::MakeConstSpan(keys.emplace_back(drawn.begin(), drawn.end()));
    updates.push_back(*ValidatedUpdate::Create(spec, columns, 1.0));
  }
  uint64_t num_tuples = 0;
  std::vector<const ValidatedUpdate*> sources;
  for (const ValidatedUpdate& update : updates) {
    sources.push_back(&update);
    num_tuples += update.num_keys();
  }
  HostThreads threads(1);
  for (const size_t num_parts : {2, 3, 8}) {
    const auto plan = cuda::PlanParts(threads, cuda::TensorShape(spec), sources, num_parts, TinyTuning());
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->num_slabs(), num_parts);
    for (size_t part = 0; part < num_parts; ++part) {
      uint64_t size = 0;
      for (const cuda::UpdateRange& range : plan->RangesOf(part)) size += range.count;
      const double share = static_cast<double>(size * num_parts) / static_cast<double>(num_tuples);
      EXPECT_NEAR(share, 1.0, 0.1) << "part " << part << " of " << num_parts;
    }
  }
}

class DeviceFaults : public ::testing::TestWithParam<std::tuple<size_t, Fault>> {};

TEST_P(DeviceFaults, OneOfThreeFailsAtAnyCall_OthersTakeItsRange) {
  const auto [failing, fault] = GetParam();
  const Round round = MakeRound(Op::kCoordinateMean, ResultLayout::kAuto);
  const bool is_fatal = fault == Fault::kSticky || fault == Fault::kSilentThenSticky;
  uint64_t at_call = 1;
  for (bool faulted = true; faulted; ++at_call) {
    SCOPED_TRACE(absl::StrCat("call ", at_call));
    std::vector<FaultPlan> plans(3);
    plans[failing] = {fault, at_call};
    std::vector<absl::Status> told;
    std::mutex mutex;
    ManyDevices devices{plans, [&](const absl::Status& reason) {
                          const std::lock_guard<std::mutex> lock(mutex);
                          told.push_back(reason);
                        }};
    ASSERT_EQ(devices.Disagrees(round), "");
    faulted = devices.records[failing].faulted;
    EXPECT_TRUE(devices.engine->Probe().ok());
    const std::vector<DeviceState> states = devices.engine->devices();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(states[i].device, static_cast<int>(i));
      EXPECT_EQ(states[i].status.ok(), !(faulted && is_fatal && i == failing)) << states[i].status;
    }
    if (faulted && is_fatal) {
      EXPECT_EQ(told.size(), 1u);
      EXPECT_EQ(devices.engine->use().num_fallbacks, 0u) << "two devices were left";
      const uint64_t launches = devices.records[failing].num_launches;
      EXPECT_EQ(devices.Disagrees(round), "");
      EXPECT_EQ(devices.records[failing].num_launches, launches) << "a device that failed was used again";
    }
    devices.engine.reset();
    for (const auto& record : devices.records) EXPECT_EQ(record.num_leaked, 0u);
  }
  EXPECT_GE(at_call, 20u) << "this round hardly uses the device";
}

INSTANTIATE_TEST_SUITE_P(Faults, DeviceFaults,
                         ::testing::Combine(::testing::Values(0, 1, 2),
                                            ::testing::Values(Fault::kOutOfMemory, Fault::kOutOfMemoryNow,
                                                              Fault::kSticky, Fault::kSilentThenSticky)),
                         [](const auto& fault_case) {
                           return absl::StrCat("Device", std::get<0>(fault_case.param),
                                               ::testing::PrintToString(std::get<1>(fault_case.param)));
                         });

TEST(Devices, KeptMemory_IsReleasedOnThoseThatWork) {
  const Round round = MakeRound(Op::kSum, ResultLayout::kAuto);
  const ManyDevices devices{{{}, {Fault::kSticky, 3}, {}}};
  EXPECT_EQ(devices.Disagrees(round), "");
  devices.engine->ReleaseDeviceMemory();
  const std::vector<uint64_t> wanted = {1, 0, 1};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(devices.records[i].num_trims, wanted[i]) << "device " << i;
  EXPECT_EQ(devices.Disagrees(round), "");
}

TEST(Devices, FailedRelease_EndsTheUseOfTheDevice) {
  const ManyDevices devices{{{Fault::kSticky, 1}}};
  devices.engine->ReleaseDeviceMemory();
  EXPECT_FALSE(devices.engine->Probe().ok());
  EXPECT_EQ(devices.Disagrees(MakeRound(Op::kSum, ResultLayout::kAuto)), "");
}

TEST(Devices, AllFail_TheCpuMerges) {
  const Round round = MakeRound(Op::kSum, ResultLayout::kAuto);
  const ManyDevices devices{{{Fault::kSticky, 3}, {Fault::kSticky, 40}}};
  EXPECT_EQ(devices.Disagrees(round), "");
  EXPECT_EQ(devices.Disagrees(round), "");
  EXPECT_FALSE(devices.engine->Probe().ok());
  EXPECT_THAT(devices.engine->description(), ::testing::HasSubstr(", after a fault of a device made to fail; "));
  for (const DeviceState& state : devices.engine->devices()) EXPECT_FALSE(state.status.ok());
}

}  // namespace
}  // namespace sparseagg::testing::devices
