// Merging on arrival: if the order of the sum does not matter, pending updates are merged into the base, and memory
// grows with the distinct keys only. The tests add enough updates for several merges, and watch the memory to see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "host/cpu/cpu_engine.h"
#include "host/cpu/tuning.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/sanitized.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// The sanitizers' builds take ten times as long, and merge at 1000 pending bytes (host/cpu/tuning.h).
constexpr size_t kFewer = kSanitized ? 8 : 1;

struct Arrival {
  std::string name;
  TensorSpec spec;
  size_t num_submissions;
  size_t max_tuples;  // of one submission
};

void PrintTo(const Arrival& arrival, std::ostream* out) { *out << arrival.name; }

TensorSpec BinnedSpec(Op op, uint64_t num_rows, uint32_t row_width) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  AggregationSpec& a = spec.aggregation;
  a.op = op;
  a.numerics = Numerics::kBinned;
  return spec;
}

std::vector<Arrival> Arrivals() {
  constexpr size_t kMany = 24000;
  TensorSpec weighted = BinnedSpec(Op::kCoordinateMean, 10000000, 1);
  weighted.aggregation.weighting = Weighting::kByWeight;
  weighted.aggregation.return_counts = true;
  weighted.aggregation.return_weights = true;
  TensorSpec integers;
  integers.name = "t";
  integers.dtype = DType::kInt64;
  integers.aggregation.op = Op::kMean;
  TensorSpec keys;
  keys.name = "t";
  keys.num_rows = 3000;
  keys.aggregation.op = Op::kUnion;
  TensorSpec extremes;
  extremes.name = "t";
  extremes.num_rows = 3000;
  extremes.aggregation.op = Op::kMin;
  extremes.aggregation.return_counts = true;
  return {{"BinnedWeighted", weighted, kMany, 4},
          {"BinnedSparse", BinnedSpec(Op::kSum, 4000000000, 1), kMany, 4},
          {"BinnedRows", BinnedSpec(Op::kMean, 3000, 48), kMany / 3, 8},
          {"Integers", integers, kMany, 4},
          {"Keys", keys, kMany, 4},
          {"Extremes", extremes, kMany, 4}};
}

std::vector<RawSubmission> Submissions(const Arrival& arrival, Rng& rng) {
  std::vector<RawSubmission> submissions;
  submissions.reserve(arrival.num_submissions);
  for (size_t i = 0; i < arrival.num_submissions; ++i) {
    const KeyOrder order = rng.Coin() ? KeyOrder::kSortedUnique : KeyOrder::kShuffled;
    RawTensor raw;
    raw.keys = RandomKeys(rng, arrival.spec.num_rows, 1 + rng.Below(arrival.max_tuples), KeyStyle::kZipf, order);
    raw.values = RandomValues(rng, arrival.spec.dtype, raw.keys.size() * arrival.spec.row_width, ValueStyle::kUnit);
    submissions.push_back({std::to_string(rng.Bits()), 0.25 + 0.5 * rng.Unit(), {std::move(raw)}});
  }
  return submissions;
}

// While it lives, the CPU engine merges pending updates of 2 MiB, as the tests' CUDA engines do.
class SmallPendingLimit {
 public:
  SmallPendingLimit() {
    cpu::CurrentTuning().min_pending_bytes = std::min(before_.min_pending_bytes, uint64_t{2} << 20);
  }
  ~SmallPendingLimit() { cpu::CurrentTuning() = before_; }

 private:
  const cpu::Tuning before_ = cpu::CurrentTuning();
};

class MergeOnArrival : public ::testing::TestWithParam<Arrival> {
  const SmallPendingLimit small_pending_limit_;
};

TEST_P(MergeOnArrival, ManySmallUpdates_EqualTheReference) {
  const Arrival& arrival = GetParam();
  const uint64_t seed = TestSeed(4711);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const std::vector<RawSubmission> submissions = Submissions(arrival, rng);
  const auto expected = Reference({arrival.spec}, submissions);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const EngineCase& engine_case : AvailableEngines()) {
    SCOPED_TRACE(engine_case.name);
    const std::unique_ptr<Engine> engine = engine_case.create();
    // A tenth of the submissions go to a second aggregation, which is merged into the first at the end.
    std::vector<std::unique_ptr<Aggregation>> aggregations;
    for (int i = 0; i < 2; ++i) aggregations.push_back(*Aggregation::Create(*engine, {arrival.spec}));
    int num_merges = 0;
    size_t bytes_before = 0;
    for (const RawSubmission& submission : submissions) {
      Aggregation& aggregation = *aggregations[rng.OneIn(10)];
      const absl::Status status = Submit(aggregation, submission);
      ASSERT_TRUE(status.ok()) << status;
      if (&aggregation != aggregations[0].get()) continue;
      num_merges += aggregation.memory_bytes() < bytes_before;
      bytes_before = aggregation.memory_bytes();
    }
    EXPECT_GE(num_merges, 2) << "too few merges for this test; add more submissions";
    ASSERT_TRUE(aggregations[0]->MergeFrom(std::move(*aggregations[1])).ok());
    const auto results = std::move(*aggregations[0]).Finish();
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ(Diff(*results, *expected), "");
  }
}

TEST_P(MergeOnArrival, DeferMerges_KeepsAllUpdatesAndEqualsTheReference) {
  const Arrival& arrival = GetParam();
  const uint64_t seed = TestSeed(4712);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const std::vector<RawSubmission> submissions = Submissions(arrival, rng);
  const auto expected = Reference({arrival.spec}, submissions);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::unique_ptr<Engine> engine = CreateCpuEngine({2});
  const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, {arrival.spec});
  aggregation->DeferMerges();
  for (const RawSubmission& submission : submissions) {
    const absl::Status status = Submit(*aggregation, submission);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(aggregation->CheckKeepsAll(), absl::OkStatus());
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(Diff(*results, *expected), "");
}

INSTANTIATE_TEST_SUITE_P(Arrivals, MergeOnArrival, ::testing::ValuesIn(Arrivals()),
                         [](const ::testing::TestParamInfo<Arrival>& arrival) { return arrival.param.name; });

TEST(MergeOnArrivalMemory, ManyUpdatesOfTheSameKeys_MemoryIsThatOfTheKeys) {
  const SmallPendingLimit small_pending_limit;
  constexpr uint32_t kWidth = 1024;
  constexpr int kCount = 30000 / kFewer;
  const TensorSpec spec = BinnedSpec(Op::kSum, 0, kWidth);
  RawSubmission submission{
      "", 1.0, {{{uint64_t{1} << 50, 3}, PackFloats(spec.dtype, std::vector<double>(2 * kWidth, 0.5))}}};
  for (const EngineCase& engine_case : AvailableEngines()) {
    if (engine_case.tiny_pieces) continue;
    SCOPED_TRACE(engine_case.name);
    const std::unique_ptr<Engine> engine = engine_case.create();
    const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, {spec});
    size_t most_bytes = 0;
    for (int i = 0; i < kCount; ++i) {
      submission.client_id = std::to_string(i);
      ASSERT_TRUE(Submit(*aggregation, submission).ok());
      most_bytes = std::max(most_bytes, aggregation->memory_bytes());
    }
    // All updates together hold 240 MB, or as much less.
    EXPECT_LT(most_bytes, (size_t{64} << 20) / kFewer) << "updates are kept instead of merged";
    const auto results = std::move(*aggregation).Finish();
    ASSERT_TRUE(results.ok());
    EXPECT_THAT(KeysOf(results->front()), ElementsAre(3u, uint64_t{1} << 50));
    EXPECT_THAT(FloatsOf(results->front()), Each(kCount / 2.0));
  }
}

}  // namespace
}  // namespace sparseagg::testing
