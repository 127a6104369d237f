// Order statistics on every engine and SIMD target: the same bits, and submissions that are kept. What the bits should
// be, tests/python/local/test_operators.py checks.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/order/lanes.h"
#include "host/cpu/simd/kernels.h"
#include "tests/host/engine/contract.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using ::testing::HasSubstr;

SPARSEAGG_ENGINE_SUITE(OrderStatisticsContract);

TensorSpec RandomSpec(Rng& rng) {
  const DType dtype = rng.Pick({DType::kFloat32, DType::kFloat16, DType::kFloat64, DType::kInt32, DType::kInt64});
  TensorSpec spec = MakeSpec(dtype, rng.Pick({Op::kMedian, Op::kTrimmedMean, Op::kQuantile}), rng.Pick({100, 0}),
                             rng.Pick({1, 1, 3, 16, 21}));
  AggregationSpec& a = spec.aggregation;
  if (a.op == Op::kQuantile) a.order.quantile = rng.Unit();
  if (a.op == Op::kTrimmedMean) a.order.trim_fraction = rng.Unit() / 2;
  a.order.absent = rng.Pick({AbsentPolicy::kSkip, AbsentPolicy::kZero});
  a.weighting = rng.Pick({Weighting::kUniform, Weighting::kByWeight});
  a.return_counts = a.return_weights = true;
  a.on_nonfinite = NonfinitePolicy::kPropagate;
  return spec;
}

std::vector<RawSubmission> RandomSubmissions(const TensorSpec& spec, Rng& rng) {
  const size_t num_clients = rng.Pick({1, 2, 9, 32, 33, 64, 65, 129});
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < num_clients; ++k) {
    std::vector<uint64_t> keys;
    std::vector<double> values;
    for (uint64_t key = 0; key < 40; ++key) {
      if (rng.OneIn(4)) continue;
      keys.push_back(key);
      for (uint32_t c = 0; c < spec.row_width; ++c) values.push_back(static_cast<double>(rng.Between(-5, 5)));
      if (IsFloat(spec.dtype) && rng.OneIn(200)) values.back() = std::numeric_limits<double>::quiet_NaN();
      if (IsFloat(spec.dtype) && rng.OneIn(20)) values.back() *= 1.0 / 3.0;
    }
    submissions.push_back(Client(spec, absl::StrCat("client ", rng.Below(1000), "-", k), keys, values,
                                 static_cast<double>(1 + rng.Below(4))));
  }
  return submissions;
}

Result MergeOn(Engine& engine, const TensorSpec& spec, const std::vector<RawSubmission>& submissions,
               const DriveOptions& options) {
  Driven driven = Drive(engine, {spec}, submissions, options);
  for (const absl::Status& status : driven.submissions) EXPECT_TRUE(status.ok()) << status;
  if (!driven.results.ok()) {
    ADD_FAILURE() << driven.results.status();
    return {};
  }
  return std::move((*driven.results)[0]);
}

TEST_P(OrderStatisticsContract, RandomRounds_HaveTheBitsOfTheBestTarget) {
  const uint64_t first = TestSeed(39);
  const uint64_t count = TestCases(120);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    Rng rng(seed);
    const TensorSpec spec = RandomSpec(rng);
    const std::vector<RawSubmission> submissions = RandomSubmissions(spec, rng);
    ASSERT_TRUE(cpu::ForceSimdTarget("").ok());
    const Result expected = MergeOn(*CreateCpuEngine({1}), spec, submissions, {});
    DriveOptions options;
    options.shuffle_seed = seed;
    options.num_aggregations = 1 + static_cast<int>(seed % 3);
    const Result result = MergeOn(*GetParam().create(), spec, submissions, options);
    ASSERT_EQ(Diff(result, expected), "");
  }
}

TEST_P(OrderStatisticsContract, FoldPending_IsRefusedWithTheReason) {
  const auto engine = GetParam().create();
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMedian);
  const auto aggregation = *Aggregation::Create(*engine, {spec});
  for (const char* id : {"b", "a", "c"})
    ASSERT_TRUE(Submit(*aggregation, Client(spec, id, {7}, {id[0] - 'a' + 1.0})).ok());
  const absl::Status status = aggregation->FoldPending();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("median needs all values of a key at once"));
  EXPECT_TRUE(aggregation->MergePending().ok());
  EXPECT_TRUE(aggregation->CheckKeepsAll().ok());
  aggregation->Remove({1});
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ::testing::ElementsAre(2.5));
}

// Sorts the whole runs that the kernels sort in registers, and applies the rest of a network.
void Apply(const std::vector<cpu::Comparator>& network, std::vector<int>& values) {
  const size_t run = cpu::RunOf(values.size());
  for (size_t i = 0; run > 0 && i + run <= values.size(); i += run) {
    std::sort(values.begin() + static_cast<std::ptrdiff_t>(i), values.begin() + static_cast<std::ptrdiff_t>(i + run));
  }
  for (const cpu::Comparator c : network) {
    ASSERT_LT(c.low, c.high);
    if (values[c.low] > values[c.high]) std::swap(values[c.low], values[c.high]);
  }
}

TEST(SortingNetwork, ForSomeRanks_BringsTheirValuesThereAndLosesNone) {
  const uint64_t seed = TestSeed(41);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  cpu::NetworkCache networks;
  for (int round = 0; round < 20000; ++round) {
    const size_t n = 1 + rng.Below(cpu::kMaxNetwork);
    const std::vector<uint64_t> ranks = {rng.Below(n), rng.Below(n)};
    std::vector<int> values(n);
    for (int& value : values) value = static_cast<int>(rng.Below(2 * n));
    std::vector<int> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    Apply(networks.Find(n, ranks), values);
    for (const uint64_t rank : ranks) ASSERT_EQ(values[rank], sorted[rank]) << n;
    std::sort(values.begin(), values.end());
    ASSERT_EQ(values, sorted);
  }
}

}  // namespace
}  // namespace sparseagg::testing
