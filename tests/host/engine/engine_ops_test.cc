// The operators, worked by hand: op × weighting × dtype × numerics.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;

SPARSEAGG_CONTRACT_SUITE(OpsContract);

// Three clients: a touches 1 and 3, b touches 3 and 7, c nothing. Weights 1, 3 and 4.
std::vector<RawSubmission> ThreeClients(const TensorSpec& spec) {
  return {Client(spec, "a", {1, 3}, {1.5, 2.0}, 1.0), Client(spec, "b", {3, 7}, {4.0, -1.0}, 3.0),
          Client(spec, "c", {}, {}, 4.0)};
}

TensorSpec WeightedSpec(Op op, DType dtype = DType::kFloat32) {
  TensorSpec spec = MakeSpec(dtype, op, 10);
  spec.aggregation.weighting = Weighting::kByWeight;
  return spec;
}

// Sums and means are binned, other ops stay canonical.
void MakeBinned(TensorSpec& spec) {
  if (IsSum(spec.aggregation.op)) spec.aggregation.numerics = Numerics::kBinned;
}

TEST_P(OpsContract, CountsAndWeights_AreAddedToAnyOp) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax}) {
    for (const bool binned : {false, true}) {
      SCOPED_TRACE(std::string(Name(op)) + (binned ? " binned" : " canonical"));
      TensorSpec spec = WeightedSpec(op);
      if (binned) MakeBinned(spec);
      spec.aggregation.return_counts = true;
      spec.aggregation.return_weights = true;
      const Result weighted = Merge(spec, ThreeClients(spec));
      EXPECT_THAT(CountsOf(weighted), ElementsAre(1, 2, 1));
      EXPECT_THAT(WeightsOf(weighted), ElementsAre(1.0, 4.0, 3.0));

      spec.aggregation.weighting = Weighting::kUniform;
      const Result uniform = Merge(spec, ThreeClients(spec));
      EXPECT_THAT(CountsOf(uniform), ElementsAre(1, 2, 1));
      EXPECT_THAT(WeightsOf(uniform), ElementsAre(1.0, 2.0, 1.0)) << "the weights sent do not matter";
    }
  }
}

TEST_P(OpsContract, EveryOp_EveryFloatDType_BothNumerics_SameExactValues) {
  struct Expected {
    Op op;
    std::vector<double> values;  // exact in every float dtype
  };
  const std::vector<Expected> table = {{Op::kSum, {1.5, 14.0, -3.0}},
                                       {Op::kMean, {0.1875, 1.75, -0.375}},
                                       {Op::kCoordinateMean, {1.5, 3.5, -1.0}},
                                       {Op::kMin, {1.5, 2.0, -1.0}},
                                       {Op::kMax, {1.5, 4.0, -1.0}}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const Expected& row : table) {
      for (const bool binned : {false, true}) {
        TensorSpec spec = WeightedSpec(row.op, dtype);
        if (binned) MakeBinned(spec);
        SCOPED_TRACE(Describe(spec));
        const Result result = Merge(spec, ThreeClients(spec));
        EXPECT_EQ(FloatsOf(result), row.values);
        EXPECT_EQ(result.dtype, dtype);
      }
    }
  }
}

TEST_P(OpsContract, EveryOp_IntegerDTypes_ExactValues) {
  struct Expected {
    Op op;
    std::vector<int64_t> values;
  };
  // a: 1→5, 3→−2 (weight 1); b: 3→4, 7→9 (weight 3); c: nothing (weight 4). Means round half to even.
  const std::vector<Expected> table = {{Op::kSum, {5, 10, 27}},
                                       {Op::kMean, {1, 1, 3}},            // 0.625, 1.25, 3.375
                                       {Op::kCoordinateMean, {5, 2, 9}},  // 5, 2.5, 9
                                       {Op::kMin, {5, -2, 9}},
                                       {Op::kMax, {5, 4, 9}}};
  for (const DType dtype : {DType::kInt32, DType::kInt64}) {
    for (const Expected& row : table) {
      TensorSpec spec = WeightedSpec(row.op, dtype);
      SCOPED_TRACE(Describe(spec));
      const Result result = Merge(spec, {Client(spec, "a", {1, 3}, {5, -2}, 1), Client(spec, "b", {3, 7}, {4, 9}, 3),
                                         Client(spec, "c", {}, {}, 4)});
      EXPECT_THAT(KeysOf(result), ElementsAre(1, 3, 7));
      EXPECT_EQ(IntegersOf(result), row.values);
      EXPECT_EQ(result.dtype, DType::kInt64);
    }
  }
}

// ---- who is a contributor

// At keys enough for vectors, thinly spread and close together, of one contributor and of two.
TEST_P(OpsContract, Weights_NegativeZero_IsZero) {
  for (const uint64_t step : {1, 1'000'000}) {
    TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 1'000'000'000);
    spec.aggregation.weighting = Weighting::kByWeight;
    spec.aggregation.return_weights = true;
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 100; ++i) keys.push_back(i * step);
    const std::vector<double> values(keys.size(), 1.0);
    const auto weights_are_zero = [&](const std::vector<RawSubmission>& submissions) {
      const std::vector<double> weights = WeightsOf(Merge(spec, submissions));
      EXPECT_EQ(weights.size(), keys.size());
      for (const double weight : weights) ASSERT_TRUE(weight == 0.0 && !std::signbit(weight)) << weight;
    };
    weights_are_zero({Client(spec, "a", keys, values, -0.0)});
    weights_are_zero({Client(spec, "a", keys, values, -0.0), Client(spec, "b", keys, values, -0.0)});
  }
}

}  // namespace
}  // namespace sparseagg::testing
