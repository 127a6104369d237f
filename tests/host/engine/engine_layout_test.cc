// Which keys leave the result and in which layout: sparse, dense, auto, prune_zeros, min_contributors, fill.
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SPARSEAGG_CONTRACT_SUITE(LayoutContract);

TensorSpec WithLayout(TensorSpec spec, ResultLayout layout) {
  spec.aggregation.result_layout = layout;
  return spec;
}

// One client that touches the first `count` keys with ones.
RawSubmission FirstKeys(const TensorSpec& spec, uint64_t count) {
  std::vector<uint64_t> keys(count);
  std::iota(keys.begin(), keys.end(), uint64_t{0});
  if (spec.aggregation.op == Op::kUnion) return KeysOnly("a", keys);
  return Client(spec, "a", keys, std::vector<double>(count * spec.row_width, 1.0));
}

TEST_P(LayoutContract, Dense_UntouchedKeys_HoldFillWithoutCountsAndWeights) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kMean, 4, 2), ResultLayout::kDense);
  spec.aggregation.fill = -2.5;
  spec.aggregation.return_counts = true;
  spec.aggregation.return_weights = true;
  const Result result = Merge(spec, {Client(spec, "a", {2}, {4, 6}), Client(spec, "b", {0, 2}, {1, 3, 0, 0})});
  EXPECT_EQ(result.layout, Layout::kDense);
  EXPECT_EQ(result.num_keys, 4u);
  EXPECT_THAT(FloatsOf(result), ElementsAre(0.5, 1.5, -2.5, -2.5, 2, 3, -2.5, -2.5));
  EXPECT_THAT(CountsOf(result), ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(WeightsOf(result), ElementsAre(1.0, 0.0, 2.0, 0.0));
  EXPECT_TRUE(std::visit([](const auto& keys) { return keys.empty(); }, result.keys));
}

TEST_P(LayoutContract, Dense_NoSubmissions_IsAllFill) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kInt32, Op::kSum, 3), ResultLayout::kDense);
  spec.aggregation.fill = 7.0;
  spec.aggregation.return_counts = true;
  const Result result = Merge(spec, {});
  EXPECT_THAT(IntegersOf(result), ElementsAre(7, 7, 7));
  EXPECT_THAT(CountsOf(result), ElementsAre(0, 0, 0));
}

TEST_P(LayoutContract, Dense_Union_HasCountsOnly) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kUnion, 4), ResultLayout::kDense);
  spec.aggregation.fill = 3.0;
  const Result result = Merge(spec, {KeysOnly("a", {1, 3}), KeysOnly("b", {3})});
  EXPECT_EQ(result.layout, Layout::kDense);
  EXPECT_EQ(result.num_keys, 4u);
  EXPECT_TRUE(result.values.empty());
  EXPECT_THAT(CountsOf(result), ElementsAre(0, 1, 0, 2));
}

TEST_P(LayoutContract, Fill_IsRoundedToTheResultDType) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kBFloat16, Op::kSum, 2), ResultLayout::kDense);
  spec.aggregation.fill = 0.1;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(0x3dcdu, 0x3f80u));
  spec.aggregation.result_dtype = DType::kFloat64;
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(0.1, 1.0));
  spec.aggregation.result_dtype.reset();
  for (const double fill : {-0.0, -1e-300}) {
    spec.aggregation.fill = fill;
    EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(0u, 0x3f80u)) << "no −0.0";
  }
  spec.aggregation.fill = -1e300;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(0xff80u, 0x3f80u)) << "−Inf";
}

TEST_P(LayoutContract, Fill_OfIntegerResults_AtTheEndsOfTheirRange) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kInt64, Op::kSum, 2), ResultLayout::kDense);
  spec.aggregation.fill = -0x1p63;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(uint64_t{1} << 63, 1u));
  spec = WithLayout(MakeSpec(DType::kUInt64, Op::kSum, 2), ResultLayout::kDense);
  spec.aggregation.fill = 0x1p64 - 2048.0;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(~uint64_t{0} - 2047, 1u));
  spec = WithLayout(MakeSpec(DType::kUInt32, Op::kSum, 2), ResultLayout::kDense);
  spec.aggregation.fill = 4294967295.0;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {1})})), ElementsAre(4294967295u, 1u));
}

TEST_P(LayoutContract, SparseResult_OfADenseTensor_HasAllKeys) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 3);
  spec.layout = Layout::kDense;
  const Result result = Merge(spec, {Client(spec, "a", {0, 1, 2}, {1, 0, 3}), Client(spec, "b", {0, 1, 2}, {1, 0, 1})});
  EXPECT_EQ(result.layout, Layout::kSparse);
  EXPECT_THAT(KeysOf(result), ElementsAre(0, 1, 2));
  EXPECT_THAT(FloatsOf(result), ElementsAre(2, 0, 4));
}

TEST_P(LayoutContract, DenseTensor_TouchesEveryKey_SoBothMeansAgree) {
  for (const Op op : {Op::kMean, Op::kCoordinateMean}) {
    TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, op, 3), ResultLayout::kDense);
    spec.layout = Layout::kDense;
    spec.aggregation.return_counts = true;
    const Result result =
        Merge(spec, {Client(spec, "a", {0, 1, 2}, {1, 0, 3}), Client(spec, "b", {0, 1, 2}, {2, 0, 1})});
    EXPECT_THAT(FloatsOf(result), ElementsAre(1.5, 0, 2));
    EXPECT_THAT(CountsOf(result), ElementsAre(2, 2, 2));
  }
}

TEST_P(LayoutContract, DenseTensor_MissingRow_IsRefused) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 3);
  spec.layout = Layout::kDense;
  EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {0, 1}, {1, 2})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {1, 2}, {1, 2})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {}, {})).code(), absl::StatusCode::kInvalidArgument);
}

// ---- the dense-fallback

struct AutoRow {
  DType dtype;
  uint32_t row_width;
  Op op;
  std::optional<DType> result_dtype;
  uint64_t num_rows;
  uint64_t least_dense;  // the fewest keys that make the result dense
};

TEST_P(LayoutContract, Auto_GoesDenseExactlyWhereThatIsNotLarger) {
  // keys·(4 + row_width·value bytes) ≥ num_rows·row_width·value bytes
  const std::vector<AutoRow> table = {
      {DType::kFloat32, 1, Op::kSum, std::nullopt, 10, 5},     // 8k ≥ 40
      {DType::kFloat32, 1, Op::kSum, std::nullopt, 11, 6},     // 8k ≥ 44
      {DType::kFloat64, 1, Op::kSum, std::nullopt, 9, 6},      // 12k ≥ 72
      {DType::kFloat16, 1, Op::kSum, std::nullopt, 9, 3},      // 6k ≥ 18
      {DType::kBFloat16, 1, Op::kMax, std::nullopt, 10, 4},    // 6k ≥ 20
      {DType::kFloat32, 4, Op::kMean, std::nullopt, 10, 8},    // 20k ≥ 160
      {DType::kFloat32, 64, Op::kSum, std::nullopt, 65, 64},   // 260k ≥ 16640
      {DType::kFloat16, 1, Op::kSum, DType::kFloat64, 9, 6},   // of the result dtype: 12k ≥ 72
      {DType::kFloat64, 1, Op::kSum, DType::kFloat32, 10, 5},  // 8k ≥ 40
      {DType::kInt32, 1, Op::kSum, std::nullopt, 9, 6},        // int64: 12k ≥ 72
      {DType::kUInt32, 1, Op::kSum, std::nullopt, 10, 5},      // 8k ≥ 40
      {DType::kFloat64, 7, Op::kUnion, std::nullopt, 10, 5},   // a count: 8k ≥ 40
      {DType::kFloat32, 1, Op::kSum, std::nullopt, 1, 1},      // 8k ≥ 4
      {DType::kFloat32, 1, Op::kSum, std::nullopt, 65536, 32768},
      {DType::kFloat32, 1, Op::kSum, std::nullopt, 65537, 32769},
  };
  for (const AutoRow& row : table) {
    TensorSpec spec = WithLayout(MakeSpec(row.dtype, row.op, row.num_rows, row.row_width), ResultLayout::kAuto);
    spec.aggregation.result_dtype = row.result_dtype;
    SCOPED_TRACE(Describe(spec));
    const Result below = Merge(spec, {FirstKeys(spec, row.least_dense - 1)});
    EXPECT_EQ(below.layout, Layout::kSparse);
    EXPECT_EQ(below.num_keys, row.least_dense - 1);
    const Result at = Merge(spec, {FirstKeys(spec, row.least_dense)});
    EXPECT_EQ(at.layout, Layout::kDense);
    EXPECT_EQ(at.num_keys, row.num_rows);
  }
}

TEST_P(LayoutContract, Auto_DenseThreshold_ComesFirstWhereItIsLower) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kSum, 10), ResultLayout::kAuto);
  spec.aggregation.dense_threshold = 0.3;
  EXPECT_EQ(Merge(spec, {FirstKeys(spec, 2)}).layout, Layout::kSparse);
  EXPECT_EQ(Merge(spec, {FirstKeys(spec, 3)}).layout, Layout::kDense);
  spec.aggregation.dense_threshold = 1.0;  // the size still decides
  EXPECT_EQ(Merge(spec, {FirstKeys(spec, 4)}).layout, Layout::kSparse);
  EXPECT_EQ(Merge(spec, {FirstKeys(spec, 5)}).layout, Layout::kDense);
  spec.num_rows = 3;
  spec.aggregation.dense_threshold = 1.0 / 3.0;
  EXPECT_EQ(Merge(spec, {FirstKeys(spec, 1)}).layout, Layout::kDense);
}

TEST_P(LayoutContract, Auto_CountsTheKeysThatAreLeft) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kSum, 10), ResultLayout::kAuto);
  spec.aggregation.min_contributors = 2;
  const RawSubmission six = FirstKeys(spec, 6);
  RawSubmission four = FirstKeys(spec, 4);
  four.client_id = "b";
  EXPECT_EQ(Merge(spec, {six, four}).layout, Layout::kSparse);
  RawSubmission five = FirstKeys(spec, 5);
  five.client_id = "b";
  const Result dense = Merge(spec, {six, five});
  EXPECT_EQ(dense.layout, Layout::kDense);
  EXPECT_THAT(FloatsOf(dense), ElementsAre(2, 2, 2, 2, 2, 0, 0, 0, 0, 0)) << "the sixth key was touched by one";

  spec.aggregation.min_contributors = 1;
  spec.aggregation.prune_zeros = true;
  EXPECT_EQ(Merge(spec, {Client(spec, "a", {0, 1, 2, 3, 4, 5}, {1, 1, 1, 1, 0, 0})}).layout, Layout::kSparse);
  EXPECT_EQ(Merge(spec, {Client(spec, "a", {0, 1, 2, 3, 4, 5}, {1, 1, 1, 1, 1, 0})}).layout, Layout::kDense);
}

TEST_P(LayoutContract, Auto_LargeKeySpaces_StaySparse) {
  for (const uint64_t num_rows : {uint64_t{0}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1, ~uint64_t{0}}) {
    const TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kSum, num_rows), ResultLayout::kAuto);
    EXPECT_EQ(Merge(spec, {FirstKeys(spec, 100)}).layout, Layout::kSparse);
  }
  EXPECT_EQ(Merge(WithLayout(MakeSpec(DType::kFloat32, Op::kSum, 1), ResultLayout::kAuto), {}).layout, Layout::kSparse)
      << "no keys";
}

TEST_P(LayoutContract, StoredKeys_Have32BitsUpToNumRows2To32) {
  for (const uint64_t num_rows : {uint64_t{5}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1, uint64_t{0}}) {
    const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, num_rows);
    for (const bool empty : {false, true}) {
      const Result result = Merge(spec, {empty ? Client(spec, "a", {}, {}) : Client(spec, "a", {4}, {1})});
      EXPECT_EQ(result.keys.index() == 0, num_rows != 0 && num_rows <= uint64_t{1} << 32);
    }
  }
}

// ---- prune_zeros and min_contributors

TEST_P(LayoutContract, PruneZeros_DropsRowsThatAreZeroThroughout) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 100, 2);
  const std::vector<RawSubmission> submissions = {Client(spec, "a", {1, 2, 3, 4}, {0, 0, 0, 1, 2.5, -1, -0.0, 0}),
                                                  Client(spec, "b", {3}, {-2.5, 1})};
  EXPECT_THAT(KeysOf(Merge(spec, submissions)), ElementsAre(1, 2, 3, 4));
  spec.aggregation.prune_zeros = true;
  EXPECT_THAT(KeysOf(Merge(spec, submissions)), ElementsAre(2));
}

TEST_P(LayoutContract, PruneZeros_LooksAtTheRoundedRow) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMean, 100);
  spec.aggregation.prune_zeros = true;
  spec.aggregation.return_counts = true;
  const std::vector<RawSubmission> submissions = {Client(spec, "a", {1, 2}, {0x1p-149, -0x1p-148}),
                                                  Client(spec, "b", {}, {})};
  EXPECT_THAT(KeysOf(Merge(spec, submissions)), ElementsAre(2));
  spec.aggregation.result_dtype = DType::kFloat64;
  EXPECT_THAT(KeysOf(Merge(spec, submissions)), ElementsAre(1, 2));
}

TEST_P(LayoutContract, PruneZeros_IntegersAndModular) {
  for (const DType dtype : {DType::kInt32, DType::kInt64, DType::kUInt32, DType::kUInt64}) {
    TensorSpec spec = MakeSpec(dtype, Op::kSum, 100);
    spec.aggregation.prune_zeros = true;
    EXPECT_THAT(
        KeysOf(Merge(spec, {IntegerClient(spec, "a", {1, 2, 3}, {0, -5, 1}), IntegerClient(spec, "b", {2}, {5})})),
        ElementsAre(3));
  }
}

TEST_P(LayoutContract, PruneZeros_IsIgnoredForUnion) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kUnion, 100);
  spec.aggregation.prune_zeros = true;
  EXPECT_THAT(KeysOf(Merge(spec, {Client(spec, "a", {1, 2}, {0, 1})})), ElementsAre(1, 2));
}

TEST_P(LayoutContract, PruneZeros_InADenseResult_GivesFill) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kSum, 3), ResultLayout::kDense);
  spec.aggregation.prune_zeros = true;
  spec.aggregation.fill = 9;
  spec.aggregation.return_counts = true;
  const Result result = Merge(spec, {Client(spec, "a", {0, 1}, {0, 2})});
  EXPECT_THAT(FloatsOf(result), ElementsAre(9, 2, 9));
  EXPECT_THAT(CountsOf(result), ElementsAre(0, 1, 0));
}

TEST_P(LayoutContract, MinContributors_DropsKeysThatFewerTouched) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax}) {
    TensorSpec spec = MakeSpec(DType::kFloat32, op, 100);
    spec.aggregation.return_counts = true;
    const std::vector<RawSubmission> submissions = {Client(spec, "a", {1, 1, 1, 2, 3}, {1, 1, 1, 1, 1}),
                                                    Client(spec, "b", {2, 3}, {0, 1}), Client(spec, "c", {3}, {1})};
    const std::vector<std::vector<uint64_t>> keys = {{1, 2, 3}, {1, 2, 3}, {2, 3}, {3}, {}};
    for (uint32_t t = 0; t < keys.size(); ++t) {
      SCOPED_TRACE(std::string(Name(op)) + " " + std::to_string(t));
      spec.aggregation.min_contributors = t;
      EXPECT_THAT(KeysOf(Merge(spec, submissions)), ElementsAreArray(keys[t]));
    }
  }
}

TEST_P(LayoutContract, MinContributors_InADenseResult_RevealsNothing) {
  TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, Op::kSum, 3), ResultLayout::kDense);
  spec.aggregation.min_contributors = 2;
  spec.aggregation.fill = -1;
  spec.aggregation.return_counts = true;
  spec.aggregation.return_weights = true;
  const Result result = Merge(spec, {Client(spec, "a", {0, 1}, {5, 6}), Client(spec, "b", {1}, {7})});
  EXPECT_THAT(FloatsOf(result), ElementsAre(-1, 13, -1));
  EXPECT_THAT(CountsOf(result), ElementsAre(0, 2, 0));
  EXPECT_THAT(WeightsOf(result), ElementsAre(0.0, 2.0, 0.0));
}

TEST_P(LayoutContract, DenseTensor_NoSubmissions_FailsByDefaultAndNamesTheTensor) {
  for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense, ResultLayout::kAuto}) {
    for (const Op op : {Op::kSum, Op::kMean, Op::kUnion, Op::kMax}) {
      TensorSpec spec = WithLayout(MakeSpec(DType::kFloat32, op, 3), layout);
      spec.layout = Layout::kDense;
      const absl::Status status = MergeStatus(spec, {});
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'tensor-name'"), HasSubstr("on_empty")));
    }
  }
}

TEST_P(LayoutContract, DenseTensor_NoSubmissionsAndKeep_IsSparseWithoutRows) {
  for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense, ResultLayout::kAuto}) {
    TensorSpec spec = WithLayout(MakeSpec(DType::kInt32, Op::kMean, 3, 2), layout);
    spec.layout = Layout::kDense;
    spec.aggregation.on_empty = EmptyPolicy::kKeep;
    spec.aggregation.return_counts = true;
    const Result result = Merge(spec, {});
    EXPECT_EQ(result.layout, Layout::kSparse);
    EXPECT_EQ(result.num_keys, 0u);
    EXPECT_EQ(result.num_rows, 3u);
    EXPECT_EQ(result.row_width, 2u);
    EXPECT_EQ(result.dtype, DType::kInt64);
    EXPECT_THAT(KeysOf(result), IsEmpty());
    EXPECT_TRUE(result.values.empty());
    EXPECT_TRUE(result.counts.empty());
    // With a submission on_empty has no influence.
    EXPECT_EQ(Merge(spec, {Client(spec, "a", {0, 1, 2}, {1, 2, 3, 4, 5, 6})}).num_keys, 3u);
  }
}

// A sparse tensor of the same round is just empty.
TEST_P(LayoutContract, SparseTensor_NoSubmissions_IsEmptyWhateverOnEmptySays) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMean, 3);
  EXPECT_EQ(Merge(spec, {}).num_keys, 0u);
}

TEST_P(LayoutContract, Empty_NoSubmissionsOrNoKeys_GiveNoRows) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax}) {
    for (const uint64_t num_rows : {uint64_t{10}, uint64_t{0}}) {
      TensorSpec spec = MakeSpec(DType::kFloat32, op, num_rows, 3);
      spec.aggregation.return_counts = true;
      spec.aggregation.return_weights = true;
      for (const size_t count : {0, 1, 3}) {
        std::vector<RawSubmission> submissions;
        for (size_t i = 0; i < count; ++i) submissions.push_back(Client(spec, std::to_string(i), {}, {}));
        const Result result = Merge(spec, submissions);
        EXPECT_EQ(result.num_keys, 0u);
        EXPECT_THAT(KeysOf(result), IsEmpty());
        EXPECT_TRUE(result.values.empty());
        EXPECT_THAT(CountsOf(result), IsEmpty());
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::testing
