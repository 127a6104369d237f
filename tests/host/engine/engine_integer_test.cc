// Integer tensors: exact sums, overflow, means, modular arithmetic.
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
using ::testing::Not;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

SPARSEAGG_CONTRACT_SUITE(IntegerContract);

TensorSpec WeightedInt64(Op op) {
  TensorSpec spec = MakeSpec(DType::kInt64, op);
  spec.aggregation.weighting = Weighting::kByWeight;
  return spec;
}

TEST_P(IntegerContract, Sum_Int32_IsInt64) {
  const TensorSpec spec = MakeSpec(DType::kInt32, Op::kSum);
  const Result result =
      Merge(spec, {Client(spec, "a", {1, 2}, {2147483647, -2147483648.0}), Client(spec, "b", {1, 2}, {1, -1})});
  EXPECT_EQ(result.dtype, DType::kInt64);
  EXPECT_THAT(IntegersOf(result), ElementsAre(2147483648, -2147483649));
}

TEST_P(IntegerContract, Sum_BeyondFloat64Precision_IsExact) {
  const TensorSpec spec = WeightedInt64(Op::kSum);
  const int64_t odd = (int64_t{1} << 53) + 1;
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1}, {odd}, 3), IntegerClient(spec, "b", {1}, {2}, 1)})),
              ElementsAre(3 * odd + 2));
}

TEST_P(IntegerContract, Sum_AtTheLimitsOfInt64_IsKept) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1, 2}, {kMax - 1, kMin + 1}),
                                      IntegerClient(spec, "b", {1, 2}, {1, -1})})),
              ElementsAre(kMax, kMin));
}

TEST_P(IntegerContract, Sum_OnePastTheLimit_FailsNamingTheSmallestKey) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  EXPECT_THAT(MergeStatus(spec, {IntegerClient(spec, "a", {900, 77, 78, 5}, {kMax, kMax, kMin, 1}),
                                 IntegerClient(spec, "b", {78, 77, 900}, {-1, 1, 1})}),
              ::testing::Property(&absl::Status::code, absl::StatusCode::kOutOfRange));
  const absl::Status status = MergeStatus(
      spec, {IntegerClient(spec, "a", {900, 77}, {kMax, kMax}), IntegerClient(spec, "b", {900, 77}, {1, 1})});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor-name"), HasSubstr("77"), Not(HasSubstr("900"))));
}

TEST_P(IntegerContract, Sum_ExcursionsOnTheWay_DoNoHarm) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  // In order of client id the partial sums leave int64 on both sides.
  EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1}, {kMax}), IntegerClient(spec, "b", {1}, {kMax}),
                                      IntegerClient(spec, "c", {1}, {kMin}), IntegerClient(spec, "d", {1}, {kMin}),
                                      IntegerClient(spec, "e", {1}, {kMin}), IntegerClient(spec, "f", {1}, {kMax}),
                                      IntegerClient(spec, "g", {1}, {5})})),
              ElementsAre(2));
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

TEST_P(IntegerContract, Overflow_OfAKeyThatWouldBeDropped_StillFails) {
  TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  spec.aggregation.min_contributors = 3;
  EXPECT_EQ(MergeStatus(spec, {IntegerClient(spec, "a", {1}, {kMax}), IntegerClient(spec, "b", {1}, {1})}).code(),
            absl::StatusCode::kOutOfRange);
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

TEST_P(IntegerContract, Duplicates_ExcursionsWithinOneSubmission_DoNoHarm) {
  for (const Op op : {Op::kSum, Op::kMax}) {
    const TensorSpec spec = MakeSpec(DType::kInt64, op);
    EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {6, 6, 6, 6}, {kMax, kMax, kMin, 1})})),
                ElementsAre(kMax));
  }
}

TEST_P(IntegerContract, Duplicates_ThatOverflow_AreRefusedForMinAndMax) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kMin);
  EXPECT_EQ(SubmitStatus(spec, IntegerClient(spec, "a", {6, 6}, {kMin, -1})).code(), absl::StatusCode::kOutOfRange);
}

TEST_P(IntegerContract, Duplicates_Int32_FoldBeyondInt32) {
  const TensorSpec spec = MakeSpec(DType::kInt32, Op::kMax, 10);
  EXPECT_THAT(IntegersOf(Merge(spec, {Client(spec, "a", {6, 6}, {2147483647, 2147483647})})), ElementsAre(4294967294));
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

TEST_P(IntegerContract, ByWeight_LargestWeight_IsExact) {
  const TensorSpec spec = WeightedInt64(Op::kSum);
  const auto weight = static_cast<int64_t>(0x1p53) - 1;
  EXPECT_THAT(IntegersOf(Merge(spec, {Client(spec, "a", {1}, {1023}, 0x1p53 - 1.0), Client(spec, "b", {1}, {1}, 1.0)})),
              ElementsAre(1023 * weight + 1));
}

TEST_P(IntegerContract, Mean_RoundsHalfToEven) {
  const TensorSpec spec = MakeSpec(DType::kInt32, Op::kMean);
  const Result result =
      Merge(spec, {Client(spec, "a", {1, 2, 3, 4, 5, 6}, {1, 3, 5, -1, -3, -5}), Client(spec, "b", {}, {})});
  EXPECT_EQ(result.dtype, DType::kInt64);
  EXPECT_THAT(IntegersOf(result), ElementsAre(0, 2, 2, 0, -2, -2));
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

TEST_P(IntegerContract, Mean_TotalBeyondInt64_FailsThoughTheMeanWouldFit) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kMean);
  EXPECT_EQ(MergeStatus(spec, {IntegerClient(spec, "a", {1}, {kMax}), IntegerClient(spec, "b", {1}, {kMax})}).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_P(IntegerContract, ResultDType_Mean_IsNotRoundedToAnInteger) {
  TensorSpec spec = MakeSpec(DType::kInt32, Op::kMean);
  spec.aggregation.result_dtype = DType::kFloat32;
  const Result result = Merge(spec, {Client(spec, "a", {1}, {5}), Client(spec, "b", {}, {})});
  EXPECT_EQ(result.dtype, DType::kFloat32);
  EXPECT_THAT(FloatsOf(result), ElementsAre(2.5));
}

TEST_P(IntegerContract, ResultDType_Sum_IsOneDirectConversion) {
  TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  spec.aggregation.result_dtype = DType::kFloat32;
  // Above the tie between 2^60 and 2^60 + 2^37 by 1, which float64 does not see.
  EXPECT_THAT(FloatsOf(Merge(spec, {IntegerClient(spec, "a", {1}, {int64_t{1} << 60}),
                                    IntegerClient(spec, "b", {1}, {(int64_t{1} << 36) + 1})})),
              ElementsAre(0x1p60 + 0x1p37));
  spec.aggregation.op = Op::kMax;
  EXPECT_THAT(FloatsOf(Merge(spec, {IntegerClient(spec, "a", {1}, {(int64_t{1} << 60) + (int64_t{1} << 36) + 1})})),
              ElementsAre(0x1p60 + 0x1p37));
  spec.aggregation.op = Op::kSum;
  spec.aggregation.result_dtype = DType::kFloat64;
  EXPECT_THAT(FloatsOf(Merge(spec, {IntegerClient(spec, "a", {1}, {(int64_t{1} << 53) + 1})})), ElementsAre(0x1p53));
}

TEST_P(IntegerContract, MinMax_LimitsOfInt64_AreOrdinaryValues) {
  for (const Op op : {Op::kMin, Op::kMax}) {
    const TensorSpec spec = MakeSpec(DType::kInt64, op);
    EXPECT_THAT(IntegersOf(Merge(spec, {IntegerClient(spec, "a", {1, 2}, {kMax, kMin}),
                                        IntegerClient(spec, "b", {1, 3}, {kMin, kMax})})),
                ElementsAre(op == Op::kMin ? kMin : kMax, kMin, kMax));
  }
}

// ---- modular

TEST_P(IntegerContract, Modular_SumsWrap) {
  const TensorSpec narrow = MakeSpec(DType::kUInt32, Op::kSum, 10);
  Result result = Merge(narrow, {Client(narrow, "a", {1, 2}, {4294967295.0, 5}), Client(narrow, "b", {1, 1}, {1, 1})});
  EXPECT_EQ(result.dtype, DType::kUInt32);
  EXPECT_THAT(BitsOf(result), ElementsAre(1u, 5u));

  const TensorSpec wide = MakeSpec(DType::kUInt64, Op::kSum, 10);
  result =
      Merge(wide, {IntegerClient(wide, "a", {1, 2, 2}, {-1, kMin, 3}), IntegerClient(wide, "b", {1, 2}, {2, kMin})});
  EXPECT_EQ(result.dtype, DType::kUInt64);
  EXPECT_THAT(BitsOf(result), ElementsAre(1u, 3u));
}

TEST_P(IntegerContract, Modular_MasksThatCancel_LeaveTheSum) {
  // Pairwise masks, as secure aggregation adds them.
  const TensorSpec spec = MakeSpec(DType::kUInt32, Op::kSum, 1000, 2);
  const double mask = 3735928559.0;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {7}, {mask + 10, 4294967296.0 - mask + 1}),
                                  Client(spec, "b", {7}, {4294967296.0 - mask + 20, mask + 2})})),
              ElementsAre(30u, 3u));
}

TEST_P(IntegerContract, Modular_Union_CountsKeys) {
  TensorSpec spec = MakeSpec(DType::kUInt64, Op::kUnion, 10);
  spec.aggregation.return_weights = true;
  const Result result = Merge(spec, {Client(spec, "a", {1, 2}, {3, 4}), KeysOnly("b", {2, 2})});
  EXPECT_THAT(KeysOf(result), ElementsAre(1, 2));
  EXPECT_THAT(CountsOf(result), ElementsAre(1, 2));
  EXPECT_THAT(WeightsOf(result), ElementsAre(1.0, 2.0));
}

}  // namespace
}  // namespace sparseagg::testing
