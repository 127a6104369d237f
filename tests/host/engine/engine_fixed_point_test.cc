// FIXED_POINT: exact sums of multiples of 2^-s, bounds, weights, and merging on arrival.
#include <cmath>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SPARSEAGG_CONTRACT_SUITE(FixedPointContract);

TensorSpec FixedPointSpec(double value_bound, uint64_t max_submissions, Op op = Op::kSum,
                          DType dtype = DType::kFloat64) {
  TensorSpec spec = MakeSpec(dtype, op);
  spec.aggregation.numerics = Numerics::kFixedPoint;
  spec.aggregation.value_bound = value_bound;
  spec.aggregation.max_submissions = max_submissions;
  return spec;
}

TEST_P(FixedPointContract, Shift_IsAsWritten) {
  struct Row {
    double bound;
    uint64_t max_submissions;
    int shift;
  };
  const std::vector<Row> table = {{1.0, 1, 62},       {1.0, 2, 61},
                                  {1.0, 3, 60},       {1.0, 4, 60},
                                  {1.0, 5, 59},       {1.0000000000000002, 1, 61},
                                  {2.0, 1, 61},       {3.0, 1, 60},
                                  {0.5, 1, 63},       {0x1.8p-10, 1024, 61},  // ⌈log₂⌉ = −9
                                  {0x1p-900, 1, 962}, {0x1p900, uint64_t{1} << 32, -870},
                                  {0x1p62, 1, 0},     {1024.0, (uint64_t{1} << 31) + 1, 20}};
  for (const Row& row : table) {
    const TensorSpec spec = FixedPointSpec(row.bound, row.max_submissions);
    SCOPED_TRACE(Describe(spec));
    const Result result = Merge(spec, {Client(spec, "a", {1, 2}, {row.bound, -row.bound})});
    EXPECT_EQ(result.fixed_point_shift, row.shift);
    EXPECT_THAT(FloatsOf(result), ElementsAre(row.bound, -row.bound)) << "the bound itself is representable here";
  }
}

TEST_P(FixedPointContract, Terms_AreRoundedToMultiplesHalfToEven) {
  // s = 62 − 0 − 62 = 0: terms become whole numbers.
  const TensorSpec spec = FixedPointSpec(0x1p62, 1);
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1, 2, 3, 4, 5, 6}, {0.5, 1.5, 2.5, -0.5, -1.5, 2.75})})),
              ElementsAre(0.0, 2.0, 2.0, 0.0, -2.0, 3.0));
}

TEST_P(FixedPointContract, Sum_AtMaxSubmissionsAndBound_DoesNotOverflow) {
  for (const uint64_t count : {1, 2, 3, 4, 7, 64, 100}) {
    const TensorSpec spec = FixedPointSpec(1.0, count);
    std::vector<RawSubmission> submissions;
    for (uint64_t i = 0; i < count; ++i) {
      submissions.push_back(Client(spec, std::to_string(i), {0, 1}, {1.0, -1.0}));
    }
    const auto total = static_cast<double>(count);
    EXPECT_THAT(FloatsOf(Merge(spec, submissions)), ElementsAre(total, -total));
  }
}

TEST_P(FixedPointContract, Sum_IsRoundedOnceToFloat64) {
  // s = 62 − 1 − 0 = 61, and 1 + 2^-61 has 62 bits: a tie or less, which float64 rounds to 1.
  const TensorSpec spec = FixedPointSpec(1.0, 2);
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1}, {1.0}), Client(spec, "b", {1}, {0x1p-61})})),
              ElementsAre(1.0));
  // 1 + 2^-53 + 2^-60 is above the tie; added one after another in float64, both small terms are lost.
  const TensorSpec three = FixedPointSpec(1.0, 3);  // s = 60
  EXPECT_THAT(FloatsOf(Merge(three, {Client(three, "a", {1}, {1.0}), Client(three, "b", {1}, {0x1p-53}),
                                     Client(three, "c", {1}, {0x1p-60})})),
              ElementsAre(1.0 + 0x1p-52));
}

// ---- bounds

TEST_P(FixedPointContract, Reject_TermBeyondTheBound_RefusesTheSubmission) {
  const TensorSpec spec = FixedPointSpec(2.0, 8);
  EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {5, 6}, {2.0, -2.0})).ok());
  for (const double value : {std::nextafter(2.0, 3.0), -2.5, 1e308}) {
    const absl::Status status = SubmitStatus(spec, Client(spec, "a", {5, 613, 7}, {1.0, value, 1.0}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor-name"), HasSubstr("613")));
  }
}

TEST_P(FixedPointContract, Reject_LargeUnsortedUpdate_NamesTheSmallestKey) {
  TensorSpec spec = FixedPointSpec(2.0, 8, Op::kSum, DType::kFloat32);
  spec.num_rows = uint64_t{1} << 40;
  std::vector<uint64_t> keys;
  for (uint64_t i = 20'000; i > 0; --i) keys.push_back(i << 20);
  std::vector<double> values(keys.size(), 1.0);
  EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", keys, values)).ok());
  for (const uint64_t i : {19'000, 613, 700}) values[keys.size() - i] = 2.5;
  const absl::Status status = SubmitStatus(spec, Client(spec, "a", keys, values));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(uint64_t{613} << 20)));
}

TEST_P(FixedPointContract, Reject_LooksAtWeightedFoldedTerms) {
  TensorSpec spec = FixedPointSpec(2.0, 8);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.weight_bound = 4.0;
  EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {5}, {4.0}, 0.5)).ok());
  EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {5, 5}, {100.0, -99.0}, 1.0)).ok());
  EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {5}, {1.0}, 2.5)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {5, 5}, {1.5, 1.0}, 1.0)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FixedPointContract, Clip_HappensAfterTheWeight) {
  TensorSpec spec = FixedPointSpec(2.0, 8);
  spec.aggregation.on_bound = BoundPolicy::kClip;
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.weight_bound = 4.0;
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1, 2}, {5.0, -1.0}, 0.25), Client(spec, "b", {3}, {1.0}, 4.0)})),
              ElementsAre(1.25, -0.25, 2.0));
}

// ---- weights

TEST_P(FixedPointContract, Weight_AboveItsBound_IsRefusedAlsoUnderClip) {
  for (const BoundPolicy on_bound : {BoundPolicy::kReject, BoundPolicy::kClip}) {
    TensorSpec spec = FixedPointSpec(100.0, 8);
    spec.aggregation.on_bound = on_bound;
    spec.aggregation.weighting = Weighting::kByWeight;
    spec.aggregation.weight_bound = 4.0;
    EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {5}, {1.0}, 4.0)).ok());
    const absl::Status status = SubmitStatus(spec, Client(spec, "a", {5}, {1.0}, 4.5));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("4.5"));
    spec.aggregation.weighting = Weighting::kUniform;
    EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {5}, {1.0}, 4.5)).ok()) << "the weight does not matter";
  }
}

TEST_P(FixedPointContract, Weights_AreRoundedToMultiplesOf2ToMinusT) {
  // t = 62 − 2 − 62 = −2: weights become multiples of 4, ties to even multiples.
  TensorSpec spec = FixedPointSpec(0x1p40, 4, Op::kCoordinateMean);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.weight_bound = 0x1p62;
  spec.aggregation.return_weights = true;
  const Result result = Merge(spec, {Client(spec, "a", {1, 2}, {1, 1}, 5.0), Client(spec, "b", {1, 3}, {1, 1}, 6.0),
                                     Client(spec, "c", {4}, {1}, 10.0)});
  EXPECT_THAT(WeightsOf(result), ElementsAre(4.0 + 8.0, 4.0, 8.0, 8.0));
  EXPECT_THAT(FloatsOf(result), ElementsAre(11.0 / 12.0, 5.0 / 4.0, 6.0 / 8.0, 10.0 / 8.0));
}

TEST_P(FixedPointContract, Weights_ThatRoundToZero_CountAsZero) {
  TensorSpec spec = FixedPointSpec(0x1p40, 4, Op::kMean);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.weight_bound = 0x1p62;
  const absl::Status status = MergeStatus(spec, {Client(spec, "a", {31}, {1}, 1.0)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor-name"));
  spec.aggregation.op = Op::kCoordinateMean;
  EXPECT_THAT(KeysOf(Merge(spec, {Client(spec, "a", {31}, {1}, 1.0)})), IsEmpty());
}

}  // namespace
}  // namespace sparseagg::testing
