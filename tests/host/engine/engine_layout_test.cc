// The contract on shapes and layouts: sizes at the edges of any block, and which layout a result has.
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"
#include "tests/support/random.h"

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

// ---- Shapes at the boundaries of blocks, radix digits and vectors, compared with the reference.

SPARSEAGG_ENGINE_SUITE(ShapeContract);

TensorSpec Plain(uint64_t num_rows, uint32_t row_width = 1) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, num_rows, row_width);
  spec.aggregation.return_counts = true;
  return spec;
}

RawSubmission WithUnitValues(const TensorSpec& spec, std::string id, std::vector<uint64_t> keys, Rng& rng) {
  RawTensor raw;
  raw.values = RandomValues(rng, spec.dtype, keys.size() * spec.row_width, ValueStyle::kUnit);
  raw.keys = std::move(keys);
  return {std::move(id), 1.0, {std::move(raw)}};
}

TEST_P(ShapeContract, TupleCounts_AroundPowersOfTwo) {
  Rng rng(TestSeed(1));
  for (const size_t count : {0,  1,  2,   3,   7,   8,    9,    15,   16,    17,    31,    32,    33,    63,
                             64, 65, 255, 256, 257, 1023, 1024, 1025, 16383, 16384, 16385, 65535, 65536, 65537}) {
    for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kShuffled}) {
      for (const uint64_t num_rows : {uint64_t{100000}, uint64_t{0}}) {
        SCOPED_TRACE(std::to_string(count) + " tuples of " + std::to_string(num_rows));
        const TensorSpec spec = Plain(num_rows);
        std::vector<RawSubmission> submissions;
        for (const char* id : {"a", "b"}) {
          std::vector<uint64_t> keys = RandomKeys(rng, num_rows, count, KeyStyle::kUniform, order);
          submissions.push_back(WithUnitValues(spec, id, std::move(keys), rng));
        }
        Merge(spec, submissions);
      }
    }
  }
}

TEST_P(ShapeContract, ContributorCounts_AroundPowersOfTwo) {
  Rng rng(TestSeed(2));
  for (const int count : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 65535, 65536, 65537}) {
    SCOPED_TRACE(count);
    TensorSpec spec = Plain(1000);
    spec.aggregation.min_contributors = static_cast<uint32_t>(count);
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < count; ++i) {
      submissions.push_back(WithUnitValues(spec, std::to_string(i), {5, 5 + rng.Below(900)}, rng));
    }
    const Result result = Merge(spec, submissions);
    ASSERT_GE(result.num_keys, 1u);
    EXPECT_EQ(result.KeyAt(0), 5u);
    EXPECT_EQ(result.counts[0], static_cast<uint32_t>(count)) << "counts must not saturate";
  }
}

TEST_P(ShapeContract, NumRows_AroundPowersOfTwo_AllKeys) {
  Rng rng(TestSeed(3));
  for (const uint64_t num_rows :
       {1, 2, 31, 32, 33, 63, 64, 65, 16383, 16384, 16385, 65535, 65536, 65537, 262143, 262145}) {
    for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense}) {
      SCOPED_TRACE(num_rows);
      TensorSpec spec = Plain(num_rows);
      spec.aggregation.result_layout = layout;
      std::vector<uint64_t> keys(num_rows);
      std::iota(keys.begin(), keys.end(), uint64_t{0});
      const Result result =
          Merge(spec, {WithUnitValues(spec, "a", keys, rng), WithUnitValues(spec, "b", {num_rows - 1}, rng)});
      EXPECT_EQ(result.num_keys, num_rows);
    }
  }
}

TEST_P(ShapeContract, Keys_AtTheEdgesOfAnyBlock) {
  // Around every power of two, and the last key of every num_rows.
  Rng rng(TestSeed(4));
  for (const uint64_t num_rows : {uint64_t{1} << 20, (uint64_t{1} << 32) - 1, uint64_t{1} << 32,
                                  (uint64_t{1} << 32) + 1, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{0}}) {
    SCOPED_TRACE(num_rows);
    const TensorSpec spec = Plain(num_rows);
    std::vector<RawSubmission> submissions;
    for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kSorted, KeyOrder::kDescending, KeyOrder::kShuffled,
                                 KeyOrder::kShuffledUnique}) {
      std::vector<uint64_t> keys = RandomKeys(rng, num_rows, 400, KeyStyle::kEdges, order);
      submissions.push_back(WithUnitValues(spec, std::to_string(submissions.size()), std::move(keys), rng));
    }
    Merge(spec, submissions);
  }
}

TEST_P(ShapeContract, Widths_WithEveryDType) {
  Rng rng(TestSeed(5));
  for (const uint32_t row_width : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 300}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32,
                              DType::kInt64, DType::kUInt32, DType::kUInt64}) {
      for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kShuffled}) {
        TensorSpec spec = MakeSpec(dtype, Op::kSum, 50, row_width);
        SCOPED_TRACE(Describe(spec));
        std::vector<RawSubmission> submissions;
        for (const char* id : {"c", "a", "b"}) {
          std::vector<uint64_t> keys = RandomKeys(rng, 50, 40, KeyStyle::kUniform, order);
          submissions.push_back(WithUnitValues(spec, id, std::move(keys), rng));
        }
        Merge(spec, submissions);
      }
    }
  }
}

TEST_P(ShapeContract, ImplicitRuns_OfSparseTensors) {
  // Chunks without key bytes, through every kind of key space; MergeFrom mixes them with stored keys.
  Rng rng(TestSeed(10));
  for (const uint64_t num_rows : {uint64_t{1000}, uint64_t{1} << 40, uint64_t{0}}) {
    const TensorSpec spec = Plain(num_rows, 3);
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < 12; ++i) {
      std::vector<uint64_t> keys(1 + rng.Below(60));
      std::iota(keys.begin(), keys.end(), i == 0 ? num_rows - keys.size() : rng.Below(900));
      submissions.push_back(WithUnitValues(spec, std::to_string(i), std::move(keys), rng));
    }
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Run({spec}, submissions, {.shuffle_seed = seed, .num_aggregations = 2});
    }
  }
}

TEST_P(ShapeContract, Failure_EarlyInALargeRound_StopsCleanly) {
  // What stops the merge lies at one key, among so many that an engine will have cut them into pieces.
  Rng rng(TestSeed(12));
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum, 4000000);
  for (const uint64_t bad_key : {uint64_t{0}, uint64_t{1999999}, uint64_t{3999999}}) {
    SCOPED_TRACE(Describe(spec) + ", key " + std::to_string(bad_key));
    std::vector<RawSubmission> submissions;
    for (const char* id : {"a", "b", "zero"}) {
      std::vector<uint64_t> keys = RandomKeys(rng, spec.num_rows, 100000, KeyStyle::kUniform, KeyOrder::kSortedUnique);
      std::erase(keys, bad_key);
      std::vector<int64_t> values(keys.size(), 1);
      keys.push_back(bad_key);
      values.push_back(std::numeric_limits<int64_t>::max());
      submissions.push_back(IntegerClient(spec, id, keys, values));
    }
    EXPECT_EQ(MergeStatus(spec, submissions).code(), absl::StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace sparseagg::testing
