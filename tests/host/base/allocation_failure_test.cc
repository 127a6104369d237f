// Allocation failures at every point of a merge: an error or the right bits, never a wrong sum.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/base/column.h"
#include "host/cpu/cpu_engine.h"
#include "tests/support/driver.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/results.h"

namespace sparseagg::testing {
namespace {

// Smaller ones are those of error messages and the like, too many to try.
constexpr size_t kLeastBytes = 512;
constexpr size_t kClients = 6;

TensorSpec SpecOf(Op op, uint32_t row_width, uint64_t num_rows, Rng& rng) {
  TensorSpec spec;
  spec.name = "t";
  spec.row_width = row_width;
  spec.num_rows = num_rows;
  AggregationSpec& a = spec.aggregation;
  a.op = op;
  if (num_rows != 0 && rng.Coin()) a.result_layout = ResultLayout::kDense;
  a.return_counts = rng.Coin();
  if (rng.Coin()) {
    a.weighting = Weighting::kByWeight;
    a.return_weights = rng.Coin();
  }
  if (IsSum(op) && rng.Coin()) a.numerics = Numerics::kBinned;
  return spec;
}

// In ascending order of client id, so that what has been added may be folded.
std::vector<RawSubmission> Submissions(const TensorSpec& spec, Rng& rng) {
  const KeyOrder order = rng.Pick({KeyOrder::kSortedUnique, KeyOrder::kShuffled, KeyOrder::kShuffledUnique});
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < kClients; ++k) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, 1500, KeyStyle::kUniform, order);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kUnit);
    submissions.push_back({absl::StrCat("client ", k), 0.5 + rng.Unit(), {std::move(raw)}});
  }
  return submissions;
}

// Adds updates, folds some of them on the way, and finishes. From the middle on, the allocation after `before` others
// fails; what can go on after that goes on. An error where the aggregation tells one.
absl::StatusOr<std::vector<Result>> Merge(Engine& engine, const TensorSpec& spec,
                                          const std::vector<ValidatedUpdate>& updates, long before, bool& failed) {
  const auto aggregation = *Aggregation::Create(engine, {spec});
  std::optional<FailingAllocation> failing;
  for (size_t k = 0; k < updates.size(); ++k) {
    if (k == updates.size() / 2) failing.emplace(before, kLeastBytes);
    absl::Status status;
    for (int tries = 0; tries < 2 && aggregation->num_submissions() == k; ++tries) {
      status = Try([&]() -> absl::Status {
        auto prepared = aggregation->Prepare({updates[k]});
        if (!prepared.ok()) return prepared.status();
        return aggregation->Add(absl::StrCat("client ", k), *std::move(prepared));
      });
    }
    if (!status.ok()) return status;
    // An error leaves everything as it was.
    if (k + 3 == updates.size()) Try([&] { return aggregation->FoldPending(); }).IgnoreError();
  }
  absl::StatusOr<std::vector<Result>> results;
  const absl::Status status = Try([&] {
    results = std::move(*aggregation).Finish();
    return results.status();
  });
  failed = failing->failed();
  if (!status.ok()) return status;
  return results;
}

class AllocationFailure : public ::testing::Test {
 protected:
  AllocationFailure() { KeepFreedColumns(0); }
  ~AllocationFailure() override { KeepFreedColumns(internal::kDefaultKeptColumnBytes); }
};

TEST_F(AllocationFailure, AnyAllocationOfAMerge_IsToldOrMakesNoDifference) {
  const uint64_t seed = TestSeed(4);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  int num_failed = 0;
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kUnion}) {
    for (const uint32_t row_width : {1, 3}) {
      for (const uint64_t num_rows : {0, 20'000}) {
        const TensorSpec spec = SpecOf(op, row_width, num_rows, rng);
        SCOPED_TRACE(Describe(spec));
        std::vector<ValidatedUpdate> updates;
        for (const RawSubmission& submission : Submissions(spec, rng)) {
          updates.push_back(std::move((*BuildUpdates({spec}, submission))[0]));
        }
        const auto engine = CreateCpuEngine({1 + static_cast<int>(rng.Below(2))});
        bool failed = false;
        const auto expected = Merge(*engine, spec, updates, 1'000'000'000, failed);
        ASSERT_TRUE(expected.ok()) << expected.status();
        ASSERT_FALSE(failed);
        for (long before = 0; before == 0 || failed; ++before) {
          const auto results = Merge(*engine, spec, updates, before, failed);
          num_failed += failed;
          if (!results.ok()) continue;
          EXPECT_EQ(Diff(*results, *expected), "") << "without allocation " << before;
        }
      }
    }
  }
  EXPECT_GE(num_failed, 200) << "this test no longer does what it is for";
}

}  // namespace
}  // namespace sparseagg::testing
