// NaN and ±Inf, bad weights and refused submissions on every engine.
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64};

SPARSEAGG_CONTRACT_SUITE(BadInputContract);

TensorSpec Propagating(DType dtype, Op op) {
  TensorSpec spec = MakeSpec(dtype, op);
  spec.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;
  return spec;
}

// ---- NaN and Inf

TEST_P(BadInputContract, Reject_NanAndInf_RefuseTheSubmission) {
  for (const DType dtype : kFloats) {
    for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kMax, Op::kUnion}) {
      for (const double value : {kInf, -kInf, kNan, -kNan}) {
        const TensorSpec spec = MakeSpec(dtype, op);
        SCOPED_TRACE(Describe(spec) + " " + std::to_string(value));
        const absl::Status status = SubmitStatus(spec, Client(spec, "a", {1, 2, 3}, {1, value, 3}));
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), HasSubstr("tensor-name"));
      }
    }
  }
}

TEST_P(BadInputContract, Reject_AnyNanPayload_IsSeen) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum);
  for (const uint32_t bits :
       {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7f800000u, 0xff800000u}) {
    std::string bytes;
    AppendBits(DType::kFloat32, bits, bytes);
    EXPECT_EQ(SubmitStatus(spec, {"a", 1.0, {{{5}, bytes}}}).code(), absl::StatusCode::kInvalidArgument) << bits;
  }
  for (const uint32_t bits : {0x7f7fffffu, 0xff7fffffu, 0x00000001u, 0x007fffffu}) {
    std::string bytes;
    AppendBits(DType::kFloat32, bits, bytes);
    EXPECT_TRUE(SubmitStatus(spec, {"a", 1.0, {{{5}, bytes}}}).ok()) << bits;
  }
}

TEST_P(BadInputContract, Propagate_Nan_IsCanonicalWhateverWentIn) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kMax}) {
    const TensorSpec spec = Propagating(DType::kFloat64, op);
    std::string bytes;
    AppendBits(DType::kFloat64, 0xfff800000000beef, bytes);
    EXPECT_THAT(BitsOf(Merge(spec, {{"a", 1.0, {{{5}, bytes}}}})), ElementsAre(0x7ff8000000000000u)) << Name(op);
  }
}

TEST_P(BadInputContract, Reject_FiniteDuplicatesThatOverflow_FollowIeee) {
  const TensorSpec spec = MakeSpec(DType::kFloat64, Op::kSum);
  const double max = std::numeric_limits<double>::max();
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1, 1, 2, 2}, {max, max, max, max}),
                                  Client(spec, "b", {1, 2, 2}, {1, -max, -max})})),
              ElementsAre(0x7ff0000000000000u, 0x7ff8000000000000u));
}

// ---- weights

TEST_P(BadInputContract, Weight_NegativeNotFiniteOrBeyondAllSums_IsRefused) {
  for (const Weighting weighting : {Weighting::kUniform, Weighting::kByWeight}) {
    for (const Op op : {Op::kSum, Op::kUnion, Op::kMin}) {
      TensorSpec spec = MakeSpec(DType::kFloat32, op);
      spec.aggregation.weighting = weighting;
      for (const double weight : {-1.0, -0x1p-1074, kNan, kInf, -kInf}) {
        EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {1}, {1}, weight)).code(), absl::StatusCode::kInvalidArgument)
            << weight;
      }
      for (const double weight : {0.0, -0.0, 0x1p-1074, 0x1p960}) {
        EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {1}, {1}, weight)).ok()) << weight;
      }
      EXPECT_EQ(SubmitStatus(spec, Client(spec, "a", {1}, {1}, 1e308)).ok(), weighting == Weighting::kUniform);
    }
  }
}

// One client without samples must not cost the others their round.
TEST_P(BadInputContract, ZeroWeightAtAKey_CoordinateMean_LeavesTheKeyOut) {
  for (const DType dtype : {DType::kFloat32, DType::kInt32}) {
    for (const Numerics numerics : {Numerics::kCanonical, Numerics::kBinned}) {
      if (!IsFloat(dtype) && numerics == Numerics::kBinned) continue;
      for (const uint32_t width : {1, 3}) {
        TensorSpec spec = MakeSpec(dtype, Op::kCoordinateMean, 10'000);
        spec.row_width = width;
        AggregationSpec& a = spec.aggregation;
        a.weighting = Weighting::kByWeight;
        a.numerics = numerics;
        a.return_counts = a.return_weights = true;
        a.result_dtype = DType::kFloat64;
        const auto client = [&](const char* id, std::vector<uint64_t> keys, std::vector<double> rows, double weight) {
          std::vector<double> values;
          for (const double value : rows) values.insert(values.end(), width, value);
          return Client(spec, id, std::move(keys), values, weight);
        };
        const std::vector<RawSubmission> both = {client("a", {0, 1, 4711, 9999}, {1, 2, 3, 4}, 0.0),
                                                 client("b", {1, 2}, {5, 6}, 2.0)};
        const Result sparse = Merge(spec, both);
        EXPECT_EQ(KeysOf(sparse), (std::vector<uint64_t>{1, 2}));
        EXPECT_THAT(CountsOf(sparse), ElementsAre(2, 1));
        EXPECT_THAT(WeightsOf(sparse), ElementsAre(2.0, 2.0));
        EXPECT_EQ(FloatsOf(sparse).back(), 6.0);
        a.result_layout = ResultLayout::kDense;
        a.fill = 7.0;
        const Result dense = Merge(spec, both);
        const std::vector<double> values = FloatsOf(dense);
        for (const size_t key : {0, 4711, 9999}) EXPECT_EQ(values[key * width], 7.0) << key;
        EXPECT_EQ(values[width], 5.0);
        EXPECT_EQ(CountsOf(dense)[0], 0u);
        EXPECT_EQ(WeightsOf(dense)[0], 0.0);
      }
    }
  }
}

TEST_P(BadInputContract, ZeroTotalWeight_MeanOrDenseTensor_FailsNamingTheTensor) {
  for (const Op op : {Op::kMean, Op::kCoordinateMean}) {
    TensorSpec spec = MakeSpec(DType::kFloat32, op, 2);
    spec.aggregation.weighting = Weighting::kByWeight;
    if (op != Op::kMean) spec.layout = Layout::kDense;
    const absl::Status status = MergeStatus(spec, {Client(spec, "a", {0, 1}, {1, 2}, 0.0)});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor-name"));
  }
}

TEST_P(BadInputContract, IntegerOverflow_KeyThatMinContributorsHides_IsNotNamed) {
  TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  spec.aggregation.min_contributors = 3;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<RawSubmission> both = {IntegerClient(spec, "a", {4711}, {kMax}, 1.0),
                                           IntegerClient(spec, "b", {4711}, {kMax}, 1.0)};
  const absl::Status hidden = MergeStatus(spec, both);
  EXPECT_EQ(hidden.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(hidden.message(), AllOf(HasSubstr("min_contributors 3"), Not(HasSubstr("4711"))));
  spec.aggregation.min_contributors = 2;
  EXPECT_THAT(MergeStatus(spec, both).message(), HasSubstr("key 4711"));
}

// ---- refusals

TEST_P(BadInputContract, KeyBeyondNumRows_IsRefused) {
  for (const uint64_t num_rows :
       {uint64_t{1}, uint64_t{1000}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1, ~uint64_t{0}}) {
    const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, num_rows);
    SCOPED_TRACE(num_rows);
    EXPECT_TRUE(SubmitStatus(spec, Client(spec, "a", {num_rows - 1}, {1})).ok());
    for (const uint64_t key : {num_rows, ~uint64_t{0}}) {
      const absl::Status status = SubmitStatus(spec, Client(spec, "a", {0, key}, {1, 1}));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor-name"), HasSubstr(std::to_string(key))));
    }
  }
}

TEST_P(BadInputContract, RefusedSubmission_AmongAHundred_LeavesTheOtherNinetyNine) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMean, 50, 2);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.return_counts = true;
  spec.aggregation.return_weights = true;
  TensorSpec second = MakeSpec(DType::kInt64, Op::kSum, 10);
  second.name = "second";
  std::vector<RawSubmission> submissions;
  for (uint64_t i = 0; i < 100; ++i) {
    submissions.push_back({"client " + std::to_string(i),
                           1.0 + 0.25 * static_cast<double>(i),
                           {{{i % 50, 7}, Pack(DType::kFloat32, {0.1, 0.2, 0.3, static_cast<double>(i)})},
                            {{i % 10}, Pack(DType::kInt64, {static_cast<double>(i)})}}});
  }
  std::vector<RawSubmission> without = submissions;
  without.erase(without.begin() + 41);
  const Driven expected = Run({spec, second}, without);
  ASSERT_TRUE(expected.results.ok());

  // The last two are found in the second tensor, when the first has been dealt with.
  std::vector<RawSubmission> bad(5, submissions[41]);
  bad[0].tensors[0].keys[1] = 50;
  bad[1].tensors[0].values.pop_back();
  bad[2].weight = kNan;
  bad[3].tensors[1].keys[0] = 10;
  bad[4].tensors[1] = {{3, 3}, PackIntegers(DType::kInt64, {std::numeric_limits<int64_t>::max(), 1})};
  for (const RawSubmission& one : bad) {
    submissions[41] = one;
    const Driven driven = Run({spec, second}, submissions);
    EXPECT_FALSE(driven.submissions[41].ok());
    ASSERT_TRUE(driven.results.ok());
    EXPECT_EQ(Diff(*driven.results, *expected.results), "");
  }
}

TEST_P(BadInputContract, RefusedClient_MayTryAgain) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum);
  const Driven driven = Run({spec}, {Client(spec, "a", {1}, {kNan}), Client(spec, "a", {1}, {4})});
  EXPECT_FALSE(driven.submissions[0].ok());
  EXPECT_TRUE(driven.submissions[1].ok());
  ASSERT_TRUE(driven.results.ok());
  EXPECT_THAT(FloatsOf(driven.results->front()), ElementsAre(4.0));
}

// ---- several failures

SPARSEAGG_ENGINE_SUITE(EngineFailures);

TEST_P(EngineFailures, OfSeveral_TheSmallestKeyIsNamed) {
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kCoordinateMean, 1'000'000'000);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  // Many keys for blocks of their own; engines for tests are slow on them.
  for (const uint64_t num_between : {0, 100'000}) {
    if (num_between > 0 && !GetParam().name.starts_with("cpu")) continue;
    SCOPED_TRACE(absl::StrCat(num_between, " keys between"));
    std::vector<uint64_t> keys = {900'000'000, 5};
    std::vector<int64_t> values = {kMax, kMax};
    for (uint64_t i = 0; i < num_between; ++i) {
      keys.push_back(100 + 8000 * i);
      values.push_back(1);
    }
    const absl::Status status = MergeStatus(
        spec, {IntegerClient(spec, "a", keys, values), IntegerClient(spec, "b", {5, 900'000'000}, {kMax, kMax})});
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_THAT(status.message(), HasSubstr("key 5:"));
  }
}

}  // namespace
}  // namespace sparseagg::testing
