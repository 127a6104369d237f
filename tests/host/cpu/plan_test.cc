// The CPU engine's plan of a merge, and its description.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "host/cpu/cpu_engine.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/tuning.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

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

}  // namespace
}  // namespace sparseagg::testing
