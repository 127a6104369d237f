// Numbers: order and rounding of float sums, no negative zero, exact integer sums and their overflow.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SPARSEAGG_CONTRACT_SUITE(FloatContract);

TensorSpec Float64Sum() { return MakeSpec(DType::kFloat64, Op::kSum); }

TEST_P(FloatContract, Canonical_ClientIds_CompareAsUnsignedBytes) {
  const TensorSpec spec = Float64Sum();
  // In ascending order; the one in the middle of each three is lost between 1e16 and −1e16.
  const std::vector<std::vector<std::string>> ascending = {{"B", "a", "b"},
                                                           {"10", "11", "9"},
                                                           {"a", "aa", "b"},
                                                           {"a", "a\x01", "aa"},
                                                           {"\x7f", "\x80", "\xff"},
                                                           {"a", std::string("a\0", 2), std::string("a\0b", 3)},
                                                           {" ", "client", "\xc3\xa9"}};
  for (const std::vector<std::string>& ids : ascending) {
    SCOPED_TRACE(ids[0] + " " + ids[1] + " " + ids[2]);
    EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, ids[1], {1}, {1}), Client(spec, ids[2], {1}, {-1e16}),
                                      Client(spec, ids[0], {1}, {1e16})})),
                ElementsAre(0.0));
    EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, ids[2], {1}, {1}), Client(spec, ids[1], {1}, {-1e16}),
                                      Client(spec, ids[0], {1}, {1e16})})),
                ElementsAre(1.0));
  }
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedBeforeTheyAreAdded) {
  const TensorSpec spec = Float64Sum();
  // 1e16 + (1 + 1) = 1e16 + 2, while (1e16 + 1) + 1 = 1e16.
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {7}, {1e16}), Client(spec, "b", {7, 8, 7}, {1, 5, 1})})),
              ElementsAre(1e16 + 2.0, 5.0));
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedBeforeTheyAreWeighted) {
  TensorSpec spec = Float64Sum();
  spec.aggregation.weighting = Weighting::kByWeight;
  // (2^53 + 1)·3 with the sum rounded to 2^53; the other way round it is 3·2^53 + 3, rounded to 3·2^53 + 4.
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1, 1}, {0x1p53, 1}, 3.0)})), ElementsAre(3.0 * 0x1p53));
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedInOrderOfOccurrence) {
  const TensorSpec spec = Float64Sum();
  const double big = 0x1p53;  // big + 1 is a tie, which goes to big
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {9, 4, 9, 3, 9}, {big, 0, 1, 0, 1})})), ElementsAre(0, 0, big));
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {9, 4, 9, 3, 9}, {1, 0, 1, 0, big})})),
              ElementsAre(0, 0, big + 2.0));
}

TEST_P(FloatContract, Sum_RoundsOnlyOnce_HalfAndBFloat16) {
  // Just above a tie of the 16-bit format, by less than float32 can see.
  const TensorSpec half = MakeSpec(DType::kFloat16, Op::kMean);
  // (1 + 2^-11 + 2^-35)·2^0 as a sum of float16 numbers: 2^-24 is the smallest. Divide by N = 2^11 instead.
  std::vector<RawSubmission> submissions = {Client(half, "0", {1}, {2048}), Client(half, "1", {1}, {1}),
                                            Client(half, "2", {1}, {0x1p-24})};
  for (int i = 3; i < 2048; ++i) submissions.push_back(Client(half, "n" + std::to_string(i), {}, {}));
  EXPECT_THAT(BitsOf(Merge(half, submissions)), ElementsAre(0x3c01u));  // 1 + 2^-10

  const TensorSpec brain = MakeSpec(DType::kBFloat16, Op::kSum);
  EXPECT_THAT(BitsOf(Merge(brain, {Client(brain, "a", {1}, {1}), Client(brain, "b", {1}, {0x1p-8}),
                                   Client(brain, "c", {1}, {0x1p-30})})),
              ElementsAre(0x3f81u));  // 1 + 2^-7
  EXPECT_THAT(BitsOf(Merge(brain, {Client(brain, "a", {1}, {1}), Client(brain, "b", {1}, {0x1p-8})})),
              ElementsAre(0x3f80u))
      << "a tie goes to even";
}

TEST_P(FloatContract, Denormals_RoundToEven) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    SCOPED_TRACE(Name(dtype));
    const TensorSpec spec = MakeSpec(dtype, Op::kMean);
    const double smallest = dtype == DType::kFloat32    ? 0x1p-149
                            : dtype == DType::kFloat16  ? 0x1p-24
                            : dtype == DType::kBFloat16 ? 0x1p-133
                                                        : 0x1p-1074;
    // Half of 1, 3 and 5 units: 0, 2 and 2.
    const Result result =
        Merge(spec, {Client(spec, "a", {1, 2, 3}, {smallest, 3 * smallest, 5 * smallest}), Client(spec, "b", {}, {})});
    EXPECT_THAT(BitsOf(result), ElementsAre(0u, 2u, 2u));
  }
}

TEST_P(FloatContract, NegativeZero_NeverInAResult) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kMax}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
      SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)));
      const TensorSpec spec = MakeSpec(dtype, op);
      EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1, 2, 3, 3}, {-0.0, -0.0, -0.0, -0.0}),
                                      Client(spec, "b", {2, 3}, {-0.0, 0.0})})),
                  ElementsAre(0u, 0u, 0u));
    }
  }
}

// ---- integers

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

SPARSEAGG_CONTRACT_SUITE(IntegerContract);

TensorSpec WeightedInt64(Op op) {
  TensorSpec spec = MakeSpec(DType::kInt64, op);
  spec.aggregation.weighting = Weighting::kByWeight;
  return spec;
}

TEST_P(IntegerContract, Sum_AtTheLimitsOfInt64_IsKept) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1, 2}, {kMax - 1, kMin + 1}),
                                      IntegerClient(spec, "b", {1, 2}, {1, -1})})),
              ElementsAre(kMax, kMin));
}

TEST_P(IntegerContract, Sum_TotalsThatWrapAround64Bits_AreNoticed) {
  // Four times 2^62 is 2^64: 0 for whoever wraps, and many more give 2^70.
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  for (const int count : {4, 256}) {
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < count; ++i) {
      submissions.push_back(IntegerClient(spec, std::to_string(i), {3}, {int64_t{1} << 62}));
    }
    EXPECT_EQ(MergeStatus(spec, submissions).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_P(IntegerContract, Overflow_InASingleSubmission_RefusesItAlone) {
  const TensorSpec spec = WeightedInt64(Op::kSum);
  const std::vector<RawSubmission> submissions = {
      IntegerClient(spec, "a", {1}, {10}, 2), IntegerClient(spec, "duplicates", {6, 6}, {kMax, 1}, 1),
      IntegerClient(spec, "weighted", {6}, {int64_t{1} << 62}, 2), IntegerClient(spec, "fits", {1}, {kMin}, 1),
      IntegerClient(spec, "negative", {6}, {(kMin / 2) - 1}, 2)};
  const Driven driven = Run({spec}, submissions);
  EXPECT_TRUE(driven.submissions[0].ok());
  EXPECT_TRUE(driven.submissions[3].ok());
  for (const int refused : {1, 2, 4}) {
    EXPECT_EQ(driven.submissions[refused].code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(driven.submissions[refused].message()), AllOf(HasSubstr("tensor-name"), HasSubstr("6")));
  }
  ASSERT_TRUE(driven.results.ok());
  EXPECT_THAT(KeysOf(driven.results->front()), ElementsAre(1));
  EXPECT_THAT(IntegersOf(driven.results->front()), ElementsAre(kMin + 20));
}

TEST_P(IntegerContract, ByWeight_WeightsMustBeIntegersBelow2To53) {
  const TensorSpec spec = WeightedInt64(Op::kSum);
  for (const double weight : {0.0, 1.0, 0x1p53 - 1.0}) {
    EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {1}, {1}, weight)).ok()) << weight;
  }
  for (const double weight : {0.5, 1.0 + 0x1p-50, 0x1p53, 1e300}) {
    EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {1}, {1}, weight)).code(), absl::StatusCode::kInvalidArgument)
        << weight;
  }
  const TensorSpec uniform = MakeSpec(DType::kInt64, Op::kSum);
  EXPECT_TRUE(SubmitStatus(uniform, Client(uniform, "a", {1}, {1}, 0.5)).ok());
}

TEST_P(IntegerContract, Mean_SumIsRoundedToFloat64BeforeTheDivision) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kCoordinateMean);
  // (2^54 + 2) / 2 would be 2^53 + 1; as float64 the sum is a tie that goes to 2^54.
  EXPECT_THAT(
      IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1}, {int64_t{1} << 54}), IntegerClient(spec, "b", {1}, {2})})),
      ElementsAre(int64_t{1} << 53));
}

TEST_P(IntegerContract, Mean_ThatRoundsOutOfInt64_Fails) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kMean);
  const absl::Status status = MergeStatus(spec, {IntegerClient(spec, "a", {44}, {kMax})});  // float64: 2^63
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor-name"), HasSubstr("44")));
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {44}, {kMin})})), ElementsAre(kMin));
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {44}, {kMax - 1023})})), ElementsAre(kMax - 1023));
}

}  // namespace
}  // namespace sparseagg::testing
