// An aggregation with a memory limit on a device engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::HasSubstr;

// A canonical sum, whose order matters, and a fixed-point one, whose order does not.
std::vector<TensorSpec> Specs() {
  TensorSpec canonical;
  canonical.name = "canonical";
  canonical.num_rows = 20'000;
  TensorSpec fixed = canonical;
  fixed.name = "fixed";
  fixed.aggregation.numerics = Numerics::kFixedPoint;
  fixed.aggregation.value_bound = 1e19;
  fixed.aggregation.max_submissions = 1000;
  return {canonical, fixed};
}

// In ascending order of client id.
std::vector<RawSubmission> Submissions(const std::vector<TensorSpec>& specs) {
  Rng rng(TestSeed(7));
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 60; ++i) {
    RawSubmission submission{absl::StrFormat("client %03d", i), 1.0, {}};
    for (const TensorSpec& spec : specs) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, 3000, 1500, KeyStyle::kUniform, KeyOrder::kShuffled);
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
      submission.tensors.push_back(std::move(raw));
    }
    submissions.push_back(std::move(submission));
  }
  return submissions;
}

TEST(DeviceMemoryLimit, ManyTimesWhatFits_StaysWithinItAndGivesTheSameBits) {
  const std::vector<TensorSpec> specs = Specs();
  const std::vector<RawSubmission> submissions = Submissions(specs);
  const auto expected = Reference(specs, submissions);
  ASSERT_TRUE(expected.ok()) << expected.status();
  size_t all_bytes = 0;
  for (const RawSubmission& submission : submissions) {
    for (const RawTensor& raw : submission.tensors) {
      all_bytes += raw.keys.size() * sizeof(uint32_t) + raw.values.size();
    }
  }
  const size_t limit = all_bytes / 2;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  const auto aggregation = *Aggregation::Create(engine, specs, limit);
  size_t before = 0;
  int num_folds = 0;
  for (const RawSubmission& submission : submissions) {
    const absl::Status added = Submit(*aggregation, submission);
    ASSERT_TRUE(added.ok()) << added;
    ASSERT_LE(aggregation->memory_bytes(), limit);
    num_folds += aggregation->memory_bytes() < before;
    before = aggregation->memory_bytes();
  }
  EXPECT_GE(num_folds, 1);
  const absl::Status early = Submit(*aggregation, {"client", 1.0, submissions[0].tensors});
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition) << early;
  EXPECT_THAT(std::string(early.message()), HasSubstr("memory_limit"));
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(Diff(*results, *expected), "");
  EXPECT_TRUE(engine.Probe().ok()) << "the device itself is well";
}

}  // namespace
}  // namespace sparseagg::testing
