// The operators, worked by hand: op × weighting × dtype × numerics.
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
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

void MakeFixedPoint(TensorSpec& spec) {
  spec.aggregation.numerics = Numerics::kFixedPoint;
  spec.aggregation.max_submissions = 3;
  spec.aggregation.value_bound = 16.0;
  spec.aggregation.weight_bound = 4.0;
}

TEST_P(OpsContract, Sum_Uniform_AddsRowsOfContributors) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 10);
  const Result result = Merge(spec, ThreeClients(spec));
  EXPECT_THAT(KeysOf(result), ElementsAre(1, 3, 7));
  EXPECT_THAT(FloatsOf(result), ElementsAre(1.5, 6.0, -1.0));
  EXPECT_EQ(result.layout, Layout::kSparse);
  EXPECT_EQ(result.dtype, DType::kFloat32);
  EXPECT_TRUE(result.has_values);
  EXPECT_EQ(result.num_keys, 3u);
  EXPECT_EQ(result.num_rows, 10u);
  EXPECT_EQ(result.row_width, 1u);
  EXPECT_TRUE(result.counts.empty());
  EXPECT_TRUE(result.weights.empty());
  EXPECT_EQ(result.fixed_point_shift, std::nullopt);
}

TEST_P(OpsContract, Sum_ByWeight_MultipliesEachRow) {
  const TensorSpec spec = WeightedSpec(Op::kSum);
  EXPECT_THAT(FloatsOf(Merge(spec, ThreeClients(spec))), ElementsAre(1.5, 2.0 + 3.0 * 4.0, -3.0));
}

TEST_P(OpsContract, Mean_Uniform_AbsentKeysCountAsZero) {
  const TensorSpec spec = MakeSpec(DType::kFloat64, Op::kMean, 10);
  EXPECT_THAT(FloatsOf(Merge(spec, ThreeClients(spec))), ElementsAre(0.5, 2.0, -1.0 / 3.0));
}

TEST_P(OpsContract, Mean_ByWeight_DividesByAllWeights) {
  const TensorSpec spec = WeightedSpec(Op::kMean);
  EXPECT_THAT(FloatsOf(Merge(spec, ThreeClients(spec))), ElementsAre(1.5 / 8.0, 14.0 / 8.0, -3.0 / 8.0));
}

TEST_P(OpsContract, CoordinateMean_Uniform_AbsentKeysDoNotVote) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kCoordinateMean, 10);
  EXPECT_THAT(FloatsOf(Merge(spec, ThreeClients(spec))), ElementsAre(1.5, 3.0, -1.0));
}

TEST_P(OpsContract, CoordinateMean_ByWeight_DividesByContributorsWeights) {
  const TensorSpec spec = WeightedSpec(Op::kCoordinateMean);
  EXPECT_THAT(FloatsOf(Merge(spec, ThreeClients(spec))), ElementsAre(1.5, 14.0 / 4.0, -1.0));
}

TEST_P(OpsContract, MinMax_ByWeight_IgnoreWeights) {
  const TensorSpec min = WeightedSpec(Op::kMin);
  EXPECT_THAT(FloatsOf(Merge(min, ThreeClients(min))), ElementsAre(1.5, 2.0, -1.0));
  const TensorSpec max = WeightedSpec(Op::kMax);
  EXPECT_THAT(FloatsOf(Merge(max, ThreeClients(max))), ElementsAre(1.5, 4.0, -1.0));
}

TEST_P(OpsContract, Union_WithOrWithoutValues_GivesKeysAndCounts) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kUnion, 10);
  for (const bool has_values : {true, false}) {
    std::vector<RawSubmission> submissions = ThreeClients(spec);
    if (!has_values) {
      for (RawSubmission& s : submissions) s.tensors[0] = {s.tensors[0].keys, "", false};
    }
    const Result result = Merge(spec, submissions);
    EXPECT_THAT(KeysOf(result), ElementsAre(1, 3, 7));
    EXPECT_FALSE(result.has_values);
    EXPECT_TRUE(result.values.empty());
    EXPECT_THAT(CountsOf(result), ElementsAre(1, 2, 1));
  }
}

TEST_P(OpsContract, Means_OfTheSameUpdates_DifferWhereNotEverybodyTouched) {
  for (const Op op : {Op::kMean, Op::kCoordinateMean}) {
    const TensorSpec spec = MakeSpec(DType::kFloat32, op);
    const Result result = Merge(spec, {Client(spec, "a", {7}, {4}), Client(spec, "b", {9}, {2})});
    EXPECT_THAT(KeysOf(result), ElementsAre(7, 9));
    EXPECT_THAT(FloatsOf(result), op == Op::kMean ? ElementsAre(2.0, 1.0) : ElementsAre(4.0, 2.0));
  }
}

TEST_P(OpsContract, CountsAndWeights_AreAddedToAnyOp) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax}) {
    for (const bool fixed_point : {false, true}) {
      SCOPED_TRACE(std::string(Name(op)) + (fixed_point ? " fixed_point" : " canonical"));
      TensorSpec spec = WeightedSpec(op);
      if (fixed_point) MakeFixedPoint(spec);
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
      for (const bool fixed_point : {false, true}) {
        TensorSpec spec = WeightedSpec(row.op, dtype);
        if (fixed_point) MakeFixedPoint(spec);
        SCOPED_TRACE(Describe(spec));
        const Result result = Merge(spec, ThreeClients(spec));
        EXPECT_EQ(FloatsOf(result), row.values);
        EXPECT_EQ(result.dtype, dtype);
        // s = 62 − ⌈log₂ 3⌉ − ⌈log₂ 16⌉
        const bool is_sum = row.op != Op::kMin && row.op != Op::kMax;
        EXPECT_EQ(result.fixed_point_shift, fixed_point && is_sum ? std::optional<int>(56) : std::nullopt);
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
      for (const bool fixed_point : {false, true}) {
        TensorSpec spec = WeightedSpec(row.op, dtype);
        if (fixed_point) MakeFixedPoint(spec);
        SCOPED_TRACE(Describe(spec));
        const Result result = Merge(spec, {Client(spec, "a", {1, 3}, {5, -2}, 1), Client(spec, "b", {3, 7}, {4, 9}, 3),
                                           Client(spec, "c", {}, {}, 4)});
        EXPECT_THAT(KeysOf(result), ElementsAre(1, 3, 7));
        EXPECT_EQ(IntegersOf(result), row.values);
        EXPECT_EQ(result.dtype, DType::kInt64);
        EXPECT_EQ(result.fixed_point_shift, std::nullopt) << "integers are exact without";
      }
    }
  }
}

TEST_P(OpsContract, Rows_AreAggregatedColumnByColumn) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMax, 100, 3);
  const Result result =
      Merge(spec, {Client(spec, "a", {20, 10}, {1, -2, 3, 7, 8, 9}), Client(spec, "b", {20}, {0, 5, 2})});
  EXPECT_THAT(KeysOf(result), ElementsAre(10, 20));
  EXPECT_THAT(FloatsOf(result), ElementsAre(7, 8, 9, 1, 5, 3));
}

TEST_P(OpsContract, Overrides_PerTensor_AreIndependent) {
  TensorSpec bias = MakeSpec(DType::kFloat32, Op::kMean, 2);
  bias.name = "bias";
  bias.layout = Layout::kDense;
  bias.aggregation.result_layout = ResultLayout::kDense;
  TensorSpec embedding = WeightedSpec(Op::kCoordinateMean);
  embedding.name = "embedding";
  TensorSpec touched = MakeSpec(DType::kInt32, Op::kUnion, 10);
  touched.name = "touched";
  const auto submission = [&](std::string id, double weight, const std::vector<double>& b, uint64_t key, double row) {
    return RawSubmission{
        std::move(id),
        weight,
        {{{0, 1}, Pack(DType::kFloat32, b)}, {{key}, Pack(DType::kFloat32, {row})}, {{key}, "", false}}};
  };
  const Driven driven =
      Run({bias, embedding, touched}, {submission("a", 1, {2, 4}, 5, 8), submission("b", 3, {4, 10}, 5, 16)});
  ASSERT_TRUE(driven.results.ok()) << driven.results.status();
  const std::vector<Result>& results = *driven.results;
  EXPECT_EQ(results[0].layout, Layout::kDense);
  EXPECT_THAT(FloatsOf(results[0]), ElementsAre(3.0, 7.0));
  EXPECT_THAT(FloatsOf(results[1]), ElementsAre((8.0 + 48.0) / 4.0));
  EXPECT_THAT(results[2].counts, ElementsAre(2));
}

// ---- who is a contributor

TEST_P(OpsContract, Duplicates_InOneUpdate_AddUpToOneContributor) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kCoordinateMean, 100, 2);
  spec.aggregation.return_counts = true;
  const Result result =
      Merge(spec, {Client(spec, "a", {9, 4, 9, 9}, {1, 10, 0, 0, 2, 20, 3, 30}), Client(spec, "b", {9}, {100, 1000})});
  EXPECT_THAT(KeysOf(result), ElementsAre(4, 9));
  EXPECT_THAT(FloatsOf(result), ElementsAre(0, 0, 53, 530));
  EXPECT_THAT(CountsOf(result), ElementsAre(1, 2));
}

TEST_P(OpsContract, MinMax_Duplicates_DenoteTheirSum) {
  for (const Op op : {Op::kMin, Op::kMax}) {
    const TensorSpec spec = MakeSpec(DType::kFloat32, op);
    const Result result = Merge(spec, {Client(spec, "a", {5, 5}, {-1, 4}), Client(spec, "b", {5}, {2})});
    EXPECT_THAT(FloatsOf(result), ElementsAre(op == Op::kMin ? 2.0 : 3.0));
  }
}

TEST_P(OpsContract, ZeroRow_TouchesItsKey) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kMax, Op::kUnion}) {
    SCOPED_TRACE(Name(op));
    TensorSpec spec = MakeSpec(DType::kFloat32, op, 10);
    spec.aggregation.return_counts = true;
    const Result result =
        Merge(spec, {Client(spec, "a", {2, 4}, {0.0, -0.0}), Client(spec, "b", {4}, {0.0}), Client(spec, "c", {}, {})});
    EXPECT_THAT(KeysOf(result), ElementsAre(2, 4));
    EXPECT_THAT(CountsOf(result), ElementsAre(1, 2));
  }
}

TEST_P(OpsContract, Cancellation_KeepsItsKey) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 10);
  const Result result = Merge(spec, {Client(spec, "a", {3}, {2.5}), Client(spec, "b", {3}, {-2.5})});
  EXPECT_THAT(KeysOf(result), ElementsAre(3));
  EXPECT_THAT(BitsOf(result), ElementsAre(0u));
}

TEST_P(OpsContract, Mean_SubmissionsThatTouchNothing_CountInN) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMean);
  std::vector<RawSubmission> submissions = {Client(spec, "a", {1}, {8})};
  for (const char* id : {"b", "c", "d"}) submissions.push_back(Client(spec, id, {}, {}));
  EXPECT_THAT(FloatsOf(Merge(spec, submissions)), ElementsAre(2.0));
}

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
