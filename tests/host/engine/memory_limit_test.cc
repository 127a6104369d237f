// Aggregations with a memory limit: they fold early and give the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Limited {
  std::string name;
  TensorSpec spec;
  size_t max_tuples = 2000;   // of one submission
  size_t shared_keys = 4000;  // of all
};

void PrintTo(const Limited& limited, std::ostream* out) { *out << limited.name; }

TensorSpec SpecOf(uint64_t num_rows, Op op = Op::kSum, DType dtype = DType::kFloat32, uint32_t row_width = 1) {
  TensorSpec spec;
  spec.name = "t";
  spec.dtype = dtype;
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  spec.aggregation.op = op;
  return spec;
}

TensorSpec Weighted(TensorSpec spec) {
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.return_counts = true;
  spec.aggregation.return_weights = true;
  return spec;
}

// Numbers of rows for table folds and for sort folds, of narrow and of wide keys.
std::vector<Limited> Cases() {
  constexpr uint64_t kSparse = 4000000000;
  constexpr uint64_t kWide = uint64_t{1} << 40;
  TensorSpec counted = SpecOf(kSparse);
  counted.aggregation.return_counts = true;
  TensorSpec binned = SpecOf(20000, Op::kMean);
  binned.aggregation.numerics = Numerics::kBinned;
  TensorSpec automatic = SpecOf(5000);
  automatic.aggregation.result_layout = ResultLayout::kAuto;
  return {{"Table", SpecOf(20000)},
          {"Sort", SpecOf(kSparse)},
          {"SortWithCounts", counted},
          {"HugeKeys", SpecOf(kWide)},
          {"AnyKeys", SpecOf(0, Op::kMean)},
          {"Rows", SpecOf(20000, Op::kSum, DType::kFloat16, 24), 600, 300},
          {"RowsSort", SpecOf(kSparse, Op::kSum, DType::kFloat32, 3), 600, 300},
          {"WeightedTable", Weighted(SpecOf(20000, Op::kCoordinateMean))},
          {"WeightedSort", Weighted(SpecOf(kSparse, Op::kCoordinateMean))},
          {"WeightedIntegers", Weighted(SpecOf(kSparse, Op::kMean, DType::kInt64)), 3000},
          {"WeightedExtremes", Weighted(SpecOf(20000, Op::kMax)), 3000},
          {"Binned", binned},
          {"Keys", SpecOf(kSparse, Op::kUnion)},
          {"DenseResult", automatic}};
}

// In ascending order of client id, so many that they take a multiple of what their sum does.
std::vector<RawSubmission> Submissions(const Limited& limited, Rng& rng) {
  const TensorSpec& spec = limited.spec;
  const std::vector<uint64_t> shared =
      RandomKeys(rng, spec.num_rows, limited.shared_keys, KeyStyle::kUniform, KeyOrder::kShuffled);
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 80; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, 5, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    for (size_t n = rng.Below(limited.max_tuples); n > 0; --n) raw.keys.push_back(shared[rng.Below(shared.size())]);
    if (rng.Coin()) {
      std::sort(raw.keys.begin(), raw.keys.end());
      raw.keys.erase(std::unique(raw.keys.begin(), raw.keys.end()), raw.keys.end());
    }
    const ValueStyle style = IsFloat(spec.dtype) ? ValueStyle::kCancelling : ValueStyle::kSmallIntegers;
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width,
                              spec.dtype == DType::kFloat16 ? ValueStyle::kUnit : style);
    const double weight = IsFloat(spec.dtype) ? 0.25 + rng.Unit() : 1.0 + static_cast<double>(rng.Below(9));
    submissions.push_back({absl::StrFormat("client %03d", i), weight, {std::move(raw)}});
  }
  return submissions;
}

class MemoryLimit : public ::testing::TestWithParam<Limited> {};

TEST_P(MemoryLimit, ManyTimesWhatFits_StaysWithinItAndGivesTheSameBits) {
  const Limited& limited = GetParam();
  const uint64_t seed = TestSeed(2026);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  const std::vector<RawSubmission> submissions = Submissions(limited, rng);
  const auto expected = Reference({limited.spec}, submissions);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int threads : {1, 2}) {
    const auto engine = CreateCpuEngine({threads});
    const auto unlimited = *Aggregation::Create(*engine, {limited.spec});
    size_t all_bytes = 0;
    for (const RawSubmission& submission : submissions) {
      all_bytes += submission.tensors[0].keys.size() * sizeof(uint32_t) + submission.tensors[0].values.size();
      ASSERT_TRUE(Submit(*unlimited, submission).ok());
    }
    ASSERT_TRUE(unlimited->FoldPending().ok());
    const size_t folded_bytes = unlimited->memory_bytes();
    const uint64_t limit = 4 * folded_bytes;
    EXPECT_LT(limit, all_bytes) << "this test no longer does what it is for";

    const auto aggregation = *Aggregation::Create(*engine, {limited.spec}, limit);
    size_t before = 0;
    int num_folds = 0;
    for (const RawSubmission& submission : submissions) {
      const absl::Status added = Submit(*aggregation, submission);
      ASSERT_TRUE(added.ok()) << added;
      ASSERT_LE(aggregation->memory_bytes(), limit);
      num_folds += aggregation->memory_bytes() < before;
      before = aggregation->memory_bytes();
    }
    EXPECT_GE(num_folds, 2);
    const auto results = std::move(*aggregation).Finish();
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ(Diff(*results, *expected), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MemoryLimit, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Limited>& limited) { return limited.param.name; });

// One key, one value.
RawSubmission Single(std::string client, double value) {
  return {std::move(client), 1.0, {{{7}, PackFloats(DType::kFloat32, {value})}}};
}

// An aggregation that has folded clients "b" and "d".
class FoldedAggregation : public ::testing::Test {
 protected:
  std::unique_ptr<Aggregation> Create(uint64_t memory_limit = 0) {
    return *Aggregation::Create(*engine_, {SpecOf(100)}, memory_limit);
  }
  std::unique_ptr<Aggregation> CreateFolded() {
    auto aggregation = Create();
    EXPECT_TRUE(Submit(*aggregation, Single("d", 2.0)).ok());
    EXPECT_TRUE(Submit(*aggregation, Single("b", 1.0)).ok());
    EXPECT_TRUE(aggregation->FoldPending().ok());
    return aggregation;
  }
  static void ExpectSum(Aggregation& aggregation, double sum) {
    const auto results = std::move(aggregation).Finish();
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_THAT(FloatsOf(results->front()), ElementsAre(sum));
  }

  const std::unique_ptr<Engine> engine_ = CreateCpuEngine({1});
};

TEST_F(FoldedAggregation, IsNotMergedWithAnother) {
  const auto folded = CreateFolded();
  const auto other = Create();
  EXPECT_TRUE(Submit(*other, Single("c", 4.0)).ok());
  for (const bool into_folded : {false, true}) {
    Aggregation& into = into_folded ? *folded : *other;
    const absl::Status status = into.MergeFrom(std::move(into_folded ? *other : *folded));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("'d'"));
  }
  ExpectSum(*folded, 3.0);
  ExpectSum(*other, 4.0);
}

TEST_F(FoldedAggregation, MoreRowsThanTheLimit_AreRefusedAndTheOthersStand) {
  TensorSpec spec = SpecOf(0);
  constexpr uint64_t kLimit = 100000;
  const auto aggregation = *Aggregation::Create(*engine_, {spec}, kLimit);
  Rng rng(3);
  const auto submission = [&](std::string client, size_t tuples) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, 0, tuples, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
    return RawSubmission{std::move(client), 1.0, {std::move(raw)}};
  };
  ASSERT_TRUE(Submit(*aggregation, submission("a", 1000)).ok());
  const absl::Status status = Submit(*aggregation, submission("b", 5000));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'b'"), HasSubstr("memory_limit 100000")));
  EXPECT_TRUE(Submit(*aggregation, submission("b", 1000)).ok()) << "nothing of the first try counts";
  EXPECT_EQ(aggregation->num_submissions(), 2u);
  const auto other = *Aggregation::Create(*engine_, {spec});
  ASSERT_TRUE(Submit(*other, submission("c", 5000)).ok());
  EXPECT_EQ(aggregation->MergeFrom(std::move(*other)).code(), absl::StatusCode::kResourceExhausted);
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(results->front().num_keys, 2000u);
}

TEST_F(FoldedAggregation, AClientThatIsRefused_FoldsNoOther) {
  const auto submission = [](std::string client, size_t tuples) {
    RawTensor raw;
    for (size_t i = 0; i < tuples; ++i) raw.keys.push_back(i);
    raw.values = PackFloats(DType::kFloat32, std::vector<double>(tuples, 1.0));
    return RawSubmission{std::move(client), 1.0, {std::move(raw)}};
  };
  const auto aggregation = *Aggregation::Create(*engine_, {SpecOf(0)}, 100000);
  for (const char* client : {"m", "n"}) ASSERT_TRUE(Submit(*aggregation, submission(client, 1000)).ok());
  EXPECT_EQ(Submit(*aggregation, submission("z", 100000)).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status before = Submit(*aggregation, submission("b", 3000));  // would fit, were the others folded
  EXPECT_EQ(before.code(), absl::StatusCode::kFailedPrecondition) << before;
  EXPECT_THAT(std::string(before.message()), AllOf(HasSubstr("'b'"), HasSubstr("'n'")));
  EXPECT_TRUE(Submit(*aggregation, submission("a", 10)).ok()) << "nothing was folded";
  EXPECT_EQ(aggregation->num_submissions(), 3u);
}

// Sizes that wrap around in 64 bits must not look small.
TEST_F(FoldedAggregation, DenseResultsThatNoMachineHolds_AreRefusedWithoutALimit) {
  struct TooLarge {
    uint64_t num_rows;
    uint32_t row_width;
    DType dtype;
    Op op;
  };
  for (const TooLarge& shape : {TooLarge{uint64_t{1} << 62, 1, DType::kFloat32, Op::kSum},
                                TooLarge{(uint64_t{1} << 62) + 1, 1, DType::kFloat32, Op::kMin},
                                TooLarge{uint64_t{1} << 61, 1, DType::kFloat64, Op::kMean},
                                TooLarge{uint64_t{1} << 50, 4096, DType::kFloat32, Op::kMax},
                                TooLarge{uint64_t{1} << 62, 1, DType::kFloat32, Op::kUnion},
                                TooLarge{uint64_t{1} << 46, 1, DType::kFloat32, Op::kSum}}) {
    TensorSpec spec = SpecOf(shape.num_rows);
    spec.row_width = shape.row_width;
    spec.dtype = shape.dtype;
    spec.aggregation.op = shape.op;
    spec.aggregation.result_layout = ResultLayout::kDense;
    const absl::Status status = Aggregation::Create(*engine_, {spec}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << shape.num_rows;
    EXPECT_THAT(std::string(status.message()), HasSubstr("address"));
  }
}

TEST_F(FoldedAggregation, TogetherBeyondTheLimit_AreNotMerged) {
  const auto small = Create(1000);
  const auto other = Create();
  ASSERT_TRUE(Submit(*small, Single("a", 1.0)).ok());
  for (const char* client : {"b", "c", "d", "e"}) ASSERT_TRUE(Submit(*other, Single(client, 1.0)).ok());
  const absl::Status status = small->MergeFrom(std::move(*other));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory_limit 1000"));
  ExpectSum(*small, 1.0);
  ExpectSum(*other, 4.0);
}

}  // namespace
}  // namespace sparseagg::testing
