// Weights that are multiplied when all submissions are there, and rows that are read before they are merged.
#include <algorithm>
#include <cstring>
#include <map>
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

using ::testing::HasSubstr;

SPARSEAGG_ENGINE_SUITE(WeightsContract);

std::unique_ptr<Aggregation> CreateAggregation(Engine& engine, const std::vector<TensorSpec>& specs) {
  auto aggregation = Aggregation::Create(engine, specs);
  EXPECT_TRUE(aggregation.ok()) << aggregation.status();
  return *std::move(aggregation);
}

// The same specs with all tensors weighted by weight.
std::vector<TensorSpec> ByWeight(std::vector<TensorSpec> specs) {
  for (TensorSpec& spec : specs) spec.aggregation.weighting = Weighting::kByWeight;
  return specs;
}

TEST_P(WeightsContract, RandomCases_HaveTheBitsOfClientsThatSentTheseWeights) {
  const uint64_t first = TestSeed(7101);
  const uint64_t count = TestCases(800);
  uint64_t num_multiplied = 0;
  const std::unique_ptr<Engine> engine = GetParam().create();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1\n", Describe(c)));
    Rng rng(seed);
    const auto aggregation = CreateAggregation(*engine, c.specs);
    if (!aggregation->CheckTakesFactors().ok()) continue;
    for (const RawSubmission& submission : c.submissions) (void)Submit(*aggregation, submission);
    // Submissions that are refused do not count, and have no factor.
    std::vector<double> factors;
    std::vector<RawSubmission> sent;
    for (const std::string& id : aggregation->client_ids()) {
      const auto found = std::find_if(c.submissions.begin(), c.submissions.end(),
                                      [&](const RawSubmission& raw) { return raw.client_id == id; });
      factors.push_back(static_cast<double>(rng.Below(8)) / 3.0);
      RawSubmission weighted = *found;
      const bool is_weighted = c.specs[0].aggregation.weighting == Weighting::kByWeight;
      weighted.weight = (is_weighted ? weighted.weight : 1.0) * factors.back();
      sent.push_back(std::move(weighted));
    }
    const bool is_mixed = std::any_of(c.specs.begin(), c.specs.end(), [&](const TensorSpec& spec) {
      return spec.aggregation.weighting != c.specs[0].aggregation.weighting;
    });
    const bool is_too_large =
        std::any_of(sent.begin(), sent.end(), [](const RawSubmission& raw) { return raw.weight > kMaxWeight; });
    if (is_mixed || is_too_large) continue;  // no single weight to send, or one that is refused
    if (rng.Coin()) {
      for (size_t t = 0; t < c.specs.size(); ++t) ASSERT_TRUE(aggregation->ReadPending(t).ok());
    }
    aggregation->MultiplyWeights(factors);
    Driven driven;
    driven.submissions.resize(sent.size());
    driven.results = std::move(*aggregation).Finish();
    ASSERT_EQ(Disagreement(ByWeight(c.specs), driven, Judge(ByWeight(c.specs), sent)), "");
    num_multiplied += sent.size();
  }
  if (count >= 800) {
    EXPECT_GT(num_multiplied, 100) << "this test no longer does what it is for";
  }
}

// Large enough for coarse order, in words and in columns, and for repeats that are folded beside the other rows.
TEST_P(WeightsContract, ReadPending_OfLargeUpdates_SortsAndFolds) {
  const uint64_t seed = TestSeed(7102);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  for (const uint64_t num_rows : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    for (const uint32_t width : {1u, 3u}) {
      for (const size_t num_repeats : {0u, 1u, 300u}) {
        SCOPED_TRACE(absl::StrCat(num_rows, " rows of ", width, ", ", num_repeats, " repeats"));
        const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMean, num_rows, width);
        const auto engine = GetParam().create();
        const auto aggregation = CreateAggregation(*engine, {spec});
        std::map<uint64_t, double> first_sums;
        std::vector<uint64_t> keys = RandomKeys(rng, num_rows, 40'000, KeyStyle::kUniform, KeyOrder::kShuffledUnique);
        for (size_t i = 0; i < num_repeats; ++i) keys[i] = keys[20'000 + i / 2];
        std::vector<double> values;
        for (const uint64_t key : keys) {
          for (uint32_t c = 0; c < width; ++c) values.push_back(static_cast<float>(rng.Below(1 << 20)));
          first_sums[key] += static_cast<float>(values[values.size() - width]);
        }
        ASSERT_TRUE(Submit(*aggregation, Client(spec, "a", keys, values)).ok());
        ASSERT_TRUE(Submit(*aggregation, Client(spec, "b", keys, values)).ok());
        const uint64_t before = aggregation->memory_bytes();
        const uint64_t more = aggregation->ReadBytes(std::vector<size_t>{0});
        const auto read = aggregation->ReadPending(0);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_LE(aggregation->memory_bytes(), before + more);
        for (const UpdateRows& rows : *read) {
          ASSERT_EQ(rows.num_keys, first_sums.size());
          ASSERT_EQ(rows.dtype, num_repeats == 0 ? DType::kFloat32 : DType::kFloat64);
          uint64_t i = 0;
          for (const auto& [key, sum] : first_sums) {
            ASSERT_EQ(KeyAt(rows.keys, i), key);
            const std::byte* const at = rows.values + i * width * SizeOf(rows.dtype);
            float narrow;
            double wide;
            std::memcpy(&narrow, at, sizeof(narrow));
            std::memcpy(&wide, at, sizeof(wide));
            ASSERT_EQ(num_repeats == 0 ? narrow : wide, sum);
            ++i;
          }
        }
      }
    }
  }
}

// Factors reach the rows of repeated keys, which a large update has beside the others.
TEST_P(WeightsContract, LargeUpdatesWithARepeat_HaveTheBitsOfClientsThatSentTheseWeights) {
  const uint64_t seed = TestSeed(7103);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, uint64_t{1} << 40);
  const auto engine = GetParam().create();
  for (const bool reads : {false, true}) {
    const auto aggregation = CreateAggregation(*engine, {spec});
    std::vector<RawSubmission> sent;
    for (const char* const id : {"b", "a"}) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, spec.num_rows, 20'000, KeyStyle::kUniform, KeyOrder::kShuffledUnique);
      for (size_t i = 0; i < 20; ++i) raw.keys[i] = 7 + i / 4;
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
      sent.push_back({id, 1.0, {std::move(raw)}});
      ASSERT_TRUE(Submit(*aggregation, sent.back()).ok());
    }
    if (reads) {
      ASSERT_TRUE(aggregation->ReadPending(0).ok());
    }
    aggregation->MultiplyWeights(std::vector<double>{0.3, 0.7});
    sent[0].weight = 0.3;
    sent[1].weight = 0.7;
    Driven driven;
    driven.submissions.resize(sent.size());
    driven.results = std::move(*aggregation).Finish();
    ASSERT_EQ(Disagreement(ByWeight({spec}), driven, Judge(ByWeight({spec}), sent)), "");
  }
}

TEST(Weights, TensorsThatTakeNoFactors_AreNamed) {
  const auto engine = CreateCpuEngine({1});
  TensorSpec binned = MakeSpec(DType::kFloat32, Op::kSum, 10);
  binned.aggregation.numerics = Numerics::kBinned;
  using Expected = std::pair<TensorSpec, const char*>;
  for (const auto& [spec, why] : {Expected(MakeSpec(DType::kInt64, Op::kSum, 10), "integers"),
                                  Expected(MakeSpec(DType::kFloat32, Op::kMax, 10), "the op max ignores weights"),
                                  Expected(MakeSpec(DType::kFloat32, Op::kUnion, 10), "the op union ignores weights"),
                                  Expected(binned, "binned sums are merged on arrival")}) {
    const absl::Status status = CreateAggregation(*engine, {spec})->CheckTakesFactors();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'tensor-name'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMedian}) {
    EXPECT_TRUE(CreateAggregation(*engine, {MakeSpec(DType::kBFloat16, op, 10)})->CheckTakesFactors().ok());
  }
}

TEST(Weights, MultiplyWeights_AllocatesNothing) {
  const auto engine = CreateCpuEngine({1});
  const TensorSpec mean = MakeSpec(DType::kFloat32, Op::kCoordinateMean, 100);
  TensorSpec median = MakeSpec(DType::kFloat32, Op::kMedian, 100);
  median.name = "median";
  const auto aggregation = CreateAggregation(*engine, {mean, median});
  for (const char* id : {"a", "b"}) {
    RawSubmission submission = Client(mean, id, {7}, {1});
    submission.tensors.push_back(submission.tensors[0]);
    ASSERT_TRUE(Submit(*aggregation, submission).ok());
  }
  const std::vector<double> factors = {0.5, 2.0};
  bool failed;
  {
    FailingAllocation failing(0);
    aggregation->MultiplyWeights(factors);
    failed = failing.failed();
  }
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace sparseagg::testing
