// The CPU engine's plan of a merge, and its description.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/tuning.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/sanitized.h"

namespace sparseagg::testing {
namespace {

using ::testing::StartsWith;

std::string PlanOf(uint64_t num_rows, size_t clients, size_t tuples) {
  Rng rng(TestSeed(5));
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = num_rows;
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < clients; ++k) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, num_rows, tuples, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
    submissions.push_back({"client " + std::to_string(k), 1.0, {std::move(raw)}});
  }
  const auto engine = CreateCpuEngine({1});
  Driven driven = Drive(*engine, {spec}, submissions);
  if (!driven.results.ok()) return driven.results.status().ToString();
  return (*driven.results)[0].plan;
}

TEST(Plan, DenseKeys_AreFoldedInATable) {
  if (cpu::kTiny) GTEST_SKIP() << "tiny blocks have other costs";
  EXPECT_THAT(PlanOf(100'000, 20, 20'000), StartsWith("table 100 % of "));
}

TEST(Plan, SparseKeys_AreFoldedBySorting) {
  if (cpu::kTiny) GTEST_SKIP() << "tiny blocks have other costs";
  EXPECT_THAT(PlanOf(1'000'000'000, 20, 20'000), StartsWith("sort 100 % of "));
}

TEST(Plan, BucketsLargerThanTables_AreFoldedBySorting) {
  const cpu::Block<uint32_t> block = cpu::PlanBlock<uint32_t>(0, (1u << 28) - 1, 300'000'000, 1, 10, 27);
  EXPECT_LT(block.table_cost, block.sort_cost);
  EXPECT_EQ(block.method, cpu::Method::kSort);
}

// ---- Keys that a merge checks where it reads them (ValidatedUpdate::CreateWithUncheckedKeys): the same bits if they
// are in order, ABORTED if not, and no write out of bounds whatever another thread makes of them.

// Columns of submissions, sorted, in the memory that updates borrow.
struct Columns {
  std::vector<RawSubmission> submissions;

  absl::Span<uint64_t> Keys(size_t i) { return absl::MakeSpan(submissions[i].tensors[0].keys); }
};

TensorSpec RandomSum(Rng& rng) {
  TensorSpec spec;
  spec.name = "t";
  constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  constexpr uint64_t kRows[] = {40, 700, 30'000, uint64_t{1} << 32};  // the last one is sorted, not put into a table
  constexpr uint32_t kWidths[] = {1, 1, 3};
  constexpr Op kSums[] = {Op::kSum, Op::kMean, Op::kCoordinateMean};
  spec.dtype = kFloats[rng.Below(4)];
  spec.num_rows = kRows[rng.Below(4)];
  spec.row_width = kWidths[rng.Below(3)];
  AggregationSpec& a = spec.aggregation;
  a.op = kSums[rng.Below(3)];
  if (rng.Coin()) a.weighting = Weighting::kByWeight;
  a.return_counts = rng.Coin();
  a.return_weights = rng.Coin() && a.weighting == Weighting::kByWeight;
  if (spec.num_rows < 1'000'000 && rng.Coin()) a.result_layout = ResultLayout::kDense;
  return spec;
}

Columns RandomColumns(const TensorSpec& spec, Rng& rng) {
  Columns columns;
  const size_t num_submissions = 1 + rng.Below(12);
  for (size_t i = 0; i < num_submissions; ++i) {
    RawTensor raw;
    const size_t most = std::min<uint64_t>(spec.num_rows, kSanitized ? 60 : 4000);
    raw.keys = RandomKeys(rng, spec.num_rows, 1 + rng.Below(most), KeyStyle::kUniform, KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kUnit);
    columns.submissions.push_back({"c" + std::to_string(100 + i), 0.25 + rng.Unit(), {std::move(raw)}});
  }
  return columns;
}

// Merges the columns, with keys that the merge checks but for about every fourth submission.
absl::StatusOr<Result> Merge(const TensorSpec& spec, Columns& columns, int threads, Rng& rng, size_t unchecked,
                             absl::FunctionRef<void()> before_finish) {
  const std::unique_ptr<Engine> engine = CreateCpuEngine({threads});
  const std::unique_ptr<Accumulator> accumulator = *engine->CreateAccumulator(spec);
  std::vector<uint32_t> order;
  for (size_t i = 0; i < columns.submissions.size(); ++i) {
    const RawSubmission& submission = columns.submissions[i];
    const absl::Span<const uint64_t> keys = columns.Keys(i);
    const auto* const values = reinterpret_cast<const std::byte*>(submission.tensors[0].values.data());
    const auto bounds = LookOver(spec, keys);
    EXPECT_TRUE(bounds.has_value());
    auto update =
        i != unchecked && rng.OneIn(4)
            ? ValidatedUpdate::CreateWithCopiedKeys(spec, keys, values, nullptr, submission.weight)
            : ValidatedUpdate::CreateWithUncheckedKeys(spec, keys, *bounds, values, nullptr, submission.weight);
    EXPECT_TRUE(update.ok()) << update.status();
    EXPECT_TRUE(accumulator->Add(*accumulator->Prepare(*std::move(update))).ok());
    order.push_back(static_cast<uint32_t>(i));
  }
  before_finish();
  return std::move(*accumulator).Finish(order);
}

TEST(UncheckedKeys, InOrder_GiveTheReferencesBits) {
  const uint64_t seed = TestSeed(6101);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (uint64_t i = 0; i < TestCases(150); ++i) {
    const TensorSpec spec = RandomSum(rng);
    SCOPED_TRACE(Describe(spec));
    Columns columns = RandomColumns(spec, rng);
    const auto expected = Reference({spec}, columns.submissions);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto result = Merge(spec, columns, 1 + static_cast<int>(rng.Below(3)), rng, 0, [] {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(Diff(*result, expected->at(0)), "");
  }
}

TEST(UncheckedKeys, NotInOrder_AreAborted) {
  const uint64_t seed = TestSeed(6102);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (uint64_t i = 0; i < TestCases(600); ++i) {
    const TensorSpec spec = RandomSum(rng);
    SCOPED_TRACE(Describe(spec));
    Columns columns = RandomColumns(spec, rng);
    const size_t bad = rng.Below(columns.submissions.size());
    const absl::Span<uint64_t> keys = columns.Keys(bad);
    if (keys.size() < 2) continue;
    const auto spoil = [&] {
      const size_t at = rng.Below(keys.size() - 1);
      switch (rng.Below(5)) {
        case 0:
          return void(keys[at + 1] = keys[at]);
        case 1:
          return std::swap(keys[at], keys[at + 1]);
        case 2:
          return std::swap(keys[at], keys[keys.size() - 1]);
        case 3:
          return void(keys[at] = static_cast<uint64_t>(-1 - static_cast<int64_t>(rng.Below(100))));
        default:
          keys[at + rng.Below(2)] += (uint64_t{1} << 32) * (1 + rng.Below(3));  // its low half is as it was
      }
    };
    const auto result = Merge(spec, columns, 1 + static_cast<int>(rng.Below(3)), rng, bad, spoil);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
  }
}

TEST(UncheckedKeys, LookOver_RefusesWhatItSees) {
  TensorSpec spec;
  spec.num_rows = 10;
  using Keys = std::vector<uint64_t>;
  for (const Keys& keys : {Keys{}, Keys{3, 3}, Keys{5, 4, 6}, Keys{5, 4}, Keys{1, 10}, Keys{uint64_t(-1)}}) {
    EXPECT_FALSE(LookOver(spec, keys).has_value());
  }
  const Keys good = {2, 3, 9};
  EXPECT_EQ(LookOver(spec, good)->smallest, 2u);
  EXPECT_EQ(LookOver(spec, good)->largest, 9u);
}

#ifndef __SANITIZE_THREAD__  // the race is meant
TEST(UncheckedKeys, ChangedDuringTheMerge_StayInBounds) {
  const uint64_t seed = TestSeed(6103);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (uint64_t i = 0; i < TestCases(40); ++i) {
    const TensorSpec spec = RandomSum(rng);
    Columns columns = RandomColumns(spec, rng);
    const absl::Span<uint64_t> keys = columns.Keys(0);
    std::atomic<bool> writes = false;
    std::atomic<bool> ends = false;
    std::thread writer;
    const auto write = [&] {
      writer = std::thread([&, bits = rng.Bits()]() mutable {
        while (!ends) {
          for (volatile uint64_t& key : keys) {
            bits = bits * 6364136223846793005u + 1442695040888963407u;
            key = bits >> (bits % 64);
          }
          if (!writes.exchange(true)) writes.notify_one();
        }
      });
      writes.wait(false);
    };
    const auto result = Merge(spec, columns, 2, rng, 0, write);
    ends = true;
    writer.join();
    EXPECT_TRUE(result.ok() || absl::IsAborted(result.status())) << result.status();
  }
}
#endif

}  // namespace
}  // namespace sparseagg::testing
