// Submissions taken out of an aggregation: as if they had never been added.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "tests/host/engine/contract.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SPARSEAGG_ENGINE_SUITE(RemoveContract);

std::unique_ptr<Aggregation> Create(Engine& engine, const std::vector<TensorSpec>& specs, uint64_t memory_limit = 0) {
  auto aggregation = Aggregation::Create(engine, specs, memory_limit);
  EXPECT_TRUE(aggregation.ok()) << aggregation.status();
  return *std::move(aggregation);
}

// Takes random submissions out, in one call or in several. Returns: the ids of those that are left.
std::vector<std::string> RemoveSome(Rng& rng, Aggregation& aggregation) {
  for (uint64_t calls = 1 + rng.Below(3); calls > 0; --calls) {
    std::vector<uint32_t> indices;
    for (uint32_t i = 0; i < aggregation.num_submissions(); ++i) {
      if (rng.OneIn(3)) indices.push_back(i);
    }
    aggregation.Remove(indices);
  }
  return aggregation.client_ids();
}

TEST_P(RemoveContract, RandomCases_EqualTheReferenceOverTheRest) {
  const uint64_t first = TestSeed(7001);
  const uint64_t count = TestCases(300);
  uint64_t num_removed = 0;
  const std::unique_ptr<Engine> engine = GetParam().create();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1\n", Describe(c)));
    Rng rng(seed);
    const auto aggregation = Create(*engine, c.specs);
    for (const RawSubmission& submission : c.submissions) (void)Submit(*aggregation, submission);
    if (!aggregation->CheckKeepsAll().ok()) continue;  // merged on arrival
    const uint64_t num_added = aggregation->num_submissions();
    const std::vector<std::string> left = RemoveSome(rng, *aggregation);
    num_removed += num_added - left.size();
    std::vector<RawSubmission> rest;
    for (const RawSubmission& submission : c.submissions) {
      const bool is_left = std::find(left.begin(), left.end(), submission.client_id) != left.end();
      // Some that were taken out come again, with twice the weight.
      RawSubmission again = submission;
      if (!is_left) again.weight *= 2;
      const bool comes = is_left || (rng.Coin() && Submit(*aggregation, again).ok());
      if (comes) rest.push_back(std::move(again));
    }
    ASSERT_EQ(aggregation->num_submissions(), rest.size());
    Driven driven;
    driven.submissions.resize(rest.size());
    driven.results = std::move(*aggregation).Finish();
    ASSERT_EQ(Disagreement(c.specs, driven, Judge(c.specs, rest)), "");
  }
  if (count >= 300) {
    EXPECT_GT(num_removed, 100) << "this test no longer does what it is for";
  }
}

TEST_P(RemoveContract, MemoryAndEstimates_AreThoseOfTheRest) {
  for (const TensorSpec& spec : {MakeSpec(DType::kFloat32, Op::kSum, 1 << 20), MakeSpec(DType::kInt64, Op::kSum)}) {
    const std::unique_ptr<Engine> engine = GetParam().create();
    Rng rng(TestSeed(7002));
    // The second is the largest by far, and alone unsorted.
    const auto update = [&](size_t size, KeyOrder order) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, 1 << 20, size, KeyStyle::kUniform, order);
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kSmallIntegers);
      return *BuildUpdates({spec}, {"c", 1.0, {raw}});
    };
    std::vector<std::vector<ValidatedUpdate>> updates;
    updates.push_back(update(4, KeyOrder::kSortedUnique));
    updates.push_back(update(20'000, KeyOrder::kShuffledUnique));
    updates.push_back(update(5, KeyOrder::kSortedUnique));
    const auto add = [&](Accumulator& accumulator, size_t i) {
      ASSERT_TRUE(accumulator.Add(*accumulator.Prepare(updates[i][0])).ok());
    };
    const auto all = *engine->CreateAccumulator(spec);
    for (size_t i = 0; i < 3; ++i) add(*all, i);
    if (!all->KeepsAll()) continue;  // an engine in torture mode merges early
    const auto rest = *engine->CreateAccumulator(spec);
    add(*rest, 0);
    add(*rest, 2);
    ASSERT_GT(all->FinishBytes(nullptr), rest->FinishBytes(nullptr));
    all->Remove(std::vector<uint32_t>{1});
    EXPECT_EQ(all->num_submissions(), 2u);
    EXPECT_EQ(all->FinishBytes(nullptr), rest->FinishBytes(nullptr));
    EXPECT_EQ(all->FoldBytes(nullptr), rest->FoldBytes(nullptr));
    EXPECT_LE(all->memory_bytes(), rest->memory_bytes() + 64) << "more than the vectors' spare capacity";
  }
}

TEST(Remove, AllocatesNothing) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 100);
  const auto engine = CreateCpuEngine({1});
  const auto aggregation = Create(*engine, {spec});
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Submit(*aggregation, Client(spec, id, {7}, {1})).ok());
  const std::vector<uint32_t> indices = {1, 3};
  bool failed;
  {
    FailingAllocation failing(0);
    aggregation->Remove(indices);
    failed = failing.failed();
  }
  EXPECT_FALSE(failed);
  EXPECT_THAT(aggregation->client_ids(), ElementsAre("a", "c"));
}

TEST(Remove, AfterAMerge_IsRefusedWithTheReason) {
  const auto engine = CreateCpuEngine({1});
  const TensorSpec integers = MakeSpec(DType::kInt64, Op::kSum, 100);
  auto aggregation = Create(*engine, {integers});
  ASSERT_TRUE(Submit(*aggregation, Client(integers, "a", {7}, {1})).ok());
  EXPECT_EQ(aggregation->CheckKeepsAll(), absl::OkStatus());
  ASSERT_TRUE(aggregation->MergePending().ok());
  absl::Status status = aggregation->CheckKeepsAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor 'tensor-name': its submissions have been merged as they"));

  const TensorSpec floats = MakeSpec(DType::kFloat32, Op::kSum, 100);
  aggregation = Create(*engine, {floats}, 1'000'000);
  ASSERT_TRUE(Submit(*aggregation, Client(floats, "a", {7}, {1})).ok());
  ASSERT_TRUE(aggregation->MergePending().ok());
  EXPECT_EQ(aggregation->CheckKeepsAll(), absl::OkStatus());
  ASSERT_TRUE(aggregation->FoldPending().ok());
  status = aggregation->CheckKeepsAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory_limit 1000000"));
}

// Each of two has something merged, or only the other one.
TEST(Remove, AfterMergeFromOneThatHasMerged_IsRefused) {
  const auto engine = CreateCpuEngine({1});
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum, 100);
  for (const bool both : {false, true}) {
    const auto ours = Create(*engine, {spec});
    const auto theirs = Create(*engine, {spec});
    ASSERT_TRUE(Submit(*ours, Client(spec, "a", {7}, {1})).ok());
    ASSERT_TRUE(Submit(*theirs, Client(spec, "b", {7}, {1})).ok());
    ASSERT_TRUE(theirs->MergePending().ok());
    if (both) {
      ASSERT_TRUE(ours->MergePending().ok());
    }
    ASSERT_TRUE(ours->MergeFrom(std::move(*theirs)).ok());
    EXPECT_EQ(ours->CheckKeepsAll().code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace sparseagg::testing
