// Which keys leave the result and in which layout: sparse, dense, auto, prune_zeros, min_contributors, fill.
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

// ---- prune_zeros and min_contributors

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

}  // namespace
}  // namespace sparseagg::testing
