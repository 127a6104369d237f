// Host memory that cannot be had while a device merges on arrival: an error that counts nothing, or the same bits.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "tests/support/driver.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"

namespace sparseagg::testing {
namespace {

constexpr size_t kClients = 4;
// Smaller ones are those of closures and messages, too many to try.
constexpr size_t kLeastBytes = 256;

// The allocation after `before` others fails; what failed is tried again.
absl::StatusOr<std::vector<Result>> Merge(Engine& engine, const TensorSpec& spec,
                                          const std::vector<RawSubmission>& submissions, long before, bool& failed) {
  const auto aggregation = *Aggregation::Create(engine, {spec});
  std::optional<FailingAllocation> failing(std::in_place, before, kLeastBytes);
  for (size_t k = 0; k < submissions.size(); ++k) {
    for (int tries = 0; tries < 2 && aggregation->num_submissions() == k; ++tries) {
      const absl::Status status = Try([&]() -> absl::Status {
        auto prepared = aggregation->Prepare(*BuildUpdates({spec}, submissions[k]));
        if (!prepared.ok()) return prepared.status();
        return aggregation->Add(submissions[k].client_id, *std::move(prepared));
      });
      EXPECT_TRUE(status.ok() || aggregation->num_submissions() == k) << status;
    }
  }
  failed = failing->failed();
  failing.reset();
  return std::move(*aggregation).Finish();
}

std::vector<RawSubmission> Submissions(const TensorSpec& spec, uint64_t seed) {
  Rng rng(seed);
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < kClients; ++k) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, 5000, 600, KeyStyle::kUniform, KeyOrder::kShuffled);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
    submissions.push_back({absl::StrCat("client ", k), 1.0, {std::move(raw)}});
  }
  return submissions;
}

TEST(DeviceAllocationFailure, AnyOnArrival_CountsNothingOrMakesNoDifference) {
  const uint64_t seed = TestSeed(41);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  TensorSpec spec;
  spec.name = "t";
  spec.dtype = DType::kInt32;
  const std::vector<RawSubmission> submissions = Submissions(spec, seed);
  cuda::DeviceEngineOptions options;
  options.tuning.min_pending_bytes = 1;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  bool failed = false;
  const auto expected = Merge(engine, spec, submissions, 1'000'000'000, failed);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_FALSE(failed);
  long before = 0;
  for (failed = true; failed; ++before) {
    const auto results = Merge(engine, spec, submissions, before, failed);
    ASSERT_TRUE(results.ok()) << results.status() << ", without allocation " << before;
    EXPECT_EQ(Diff(*results, *expected), "") << "without allocation " << before;
  }
  EXPECT_GE(before, 20) << "this test no longer does what it is for";
}

// What failed must leave no trace on the device, since the next update's arrays may lie at the same addresses.
TEST(DeviceAllocationFailure, AnyWhileAnUpdateIsSentAhead_MakesNoDifference) {
  const uint64_t seed = TestSeed(42);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  TensorSpec spec;
  spec.name = "t";
  const std::vector<RawSubmission> submissions = Submissions(spec, seed);
  const Verdict verdict = Judge({spec}, submissions);
  cuda::DeviceEngineOptions options;
  options.tuning.min_resident_bytes = 1;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  long before = 0;
  for (bool failed = true; failed; ++before) {
    {
      const auto aggregation = *Aggregation::Create(engine, {spec});
      std::vector<ValidatedUpdate> updates = *BuildUpdates({spec}, submissions.back());
      const FailingAllocation failing(before);
      Try([&] { return aggregation->Prepare(std::move(updates)).status(); }).IgnoreError();
      failed = failing.failed();
    }
    ASSERT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), verdict), "") << "without allocation " << before;
  }
  EXPECT_GE(before, 8) << "this test no longer does what it is for";
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
}

TEST(DeviceAllocationFailure, AnyDuringAnImport_MakesNoDifferenceToTheNextOne) {
  const uint64_t seed = TestSeed(43);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  TensorSpec spec;
  spec.name = "t";
  const std::vector<RawSubmission> submissions = Submissions(spec, seed);
  const Verdict verdict = Judge({spec}, submissions);
  auto owner = std::make_shared<const int>(0);
  struct FaultyDevice::Record record;
  auto engine = std::make_unique<cuda::DeviceEngine>(
      std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{}, FaultPlan{}, &record), cuda::DeviceEngineOptions{});
  const auto import = [&](std::vector<ValidatedUpdate>& imported) {
    std::vector<DeviceUpdate> updates;
    for (const RawSubmission& submission : submissions) {
      const RawTensor& raw = submission.tensors[0];
      const auto* const values = reinterpret_cast<const std::byte*>(raw.values.data());
      updates.push_back({&spec, absl::MakeConstSpan(raw.keys), values, owner});
    }
    return engine->Import(absl::MakeSpan(updates), imported);
  };
  long before = 0;
  for (bool failed = true; failed; ++before) {
    SCOPED_TRACE(absl::StrCat("without allocation ", before));
    {
      std::vector<ValidatedUpdate> imported;
      const FailingAllocation failing(before);
      Try([&] { return import(imported); }).IgnoreError();
      failed = failing.failed();
    }
    EXPECT_EQ(owner.use_count(), 1) << "arrays were not given back";
    std::vector<ValidatedUpdate> imported;
    ASSERT_EQ(import(imported), absl::OkStatus());
    const auto aggregation = *Aggregation::Create(*engine, {spec});
    for (size_t k = 0; k < submissions.size(); ++k) {
      ASSERT_TRUE(aggregation->Add(submissions[k].client_id, *aggregation->Prepare({imported[k]})).ok());
    }
    imported.clear();
    Driven driven{std::vector<absl::Status>(kClients), std::move(*aggregation).Finish()};
    ASSERT_EQ(Disagreement({spec}, driven, verdict), "");
  }
  EXPECT_GE(before, 10) << "this test no longer does what it is for";
  EXPECT_EQ(engine->use().num_fallbacks, 0u);
  engine.reset();
  EXPECT_EQ(record.num_leaked, 0u);
}

}  // namespace
}  // namespace sparseagg::testing
