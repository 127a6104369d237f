#include "service/codec/spec_codec.h"

#include <functional>

#include "service/codec/round_codec.h"
#include "service/rounds/round_config.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

RoundConfig Decode(const v1::RoundSpec& spec) {
  auto config = DecodeRoundSpec(spec, Limits{});
  EXPECT_THAT(config, IsOk());
  return *std::move(config);
}

TEST(SpecCodecTest, Decode_NothingSet_HasTheDefaults) {
  const RoundConfig config = Decode(SumSpec(7));
  ASSERT_EQ(config.tensors.size(), 1);
  const TensorSpec& tensor = config.tensors[0];
  EXPECT_EQ(tensor.name, "v");
  EXPECT_EQ(tensor.num_rows, 7);
  EXPECT_EQ(tensor.row_width, 1);
  EXPECT_EQ(tensor.layout, Layout::kSparse);
  EXPECT_EQ(tensor.aggregation.op, Op::kSum);
  EXPECT_EQ(tensor.aggregation.weighting, Weighting::kUniform);
  EXPECT_EQ(tensor.aggregation.result_layout, ResultLayout::kSparse);
  EXPECT_EQ(tensor.aggregation.numerics, Numerics::kCanonical);
  EXPECT_EQ(tensor.aggregation.min_contributors, 1);
  EXPECT_EQ(config.deadline, absl::InfiniteDuration());
  EXPECT_EQ(config.result_ttl, Limits{}.max_result_ttl);
  EXPECT_EQ(config.max_tuples_per_submission, Limits{}.max_tuples_per_submission);
}

// The round's bound is that of the tensors which have one.
TEST(SpecCodecTest, Decode_BoundForOneTensorOfTwo_IsTaken) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(10);
  spec.mutable_aggregation()->set_value_bound(2);
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT);
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(1)->set_name("w");
  spec.mutable_tensors(1)->mutable_aggregation()->set_numerics(v1::NUMERICS_CANONICAL);
  const RoundConfig config = Decode(spec);
  EXPECT_EQ(config.tensors[0].aggregation.value_bound, 2);
  EXPECT_EQ(config.tensors[1].aggregation.numerics, Numerics::kCanonical);
}

TEST(SpecCodecTest, Decode_TensorAggregation_OverridesFieldByField) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_op(v1::OP_MEAN);
  spec.mutable_aggregation()->set_weighting(v1::WEIGHTING_BY_WEIGHT);
  spec.mutable_aggregation()->set_return_counts(true);
  spec.mutable_aggregation()->set_fill(3.0);
  spec.mutable_aggregation()->set_min_contributors(4);
  v1::TensorSpec* second = spec.add_tensors();
  *second = spec.tensors(0);
  second->set_name("w");
  second->set_layout(v1::TENSOR_LAYOUT_DENSE);
  second->mutable_aggregation()->set_op(v1::OP_COORDINATE_MEAN);
  second->mutable_aggregation()->set_return_counts(false);
  second->mutable_aggregation()->set_fill(0.0);
  const RoundConfig config = Decode(spec);
  const AggregationSpec& first = config.tensors[0].aggregation;
  EXPECT_EQ(first.op, Op::kMean);
  EXPECT_EQ(first.weighting, Weighting::kByWeight);
  EXPECT_TRUE(first.return_counts);
  EXPECT_EQ(first.fill, 3.0);
  EXPECT_EQ(first.min_contributors, 4);
  const AggregationSpec& other = config.tensors[1].aggregation;
  EXPECT_EQ(other.op, Op::kCoordinateMean);
  EXPECT_EQ(other.weighting, Weighting::kByWeight);
  EXPECT_FALSE(other.return_counts);
  EXPECT_EQ(other.fill, 0.0);
  EXPECT_EQ(other.result_layout, ResultLayout::kDense);
}

TEST(SpecCodecTest, Decode_SameSpec_HasTheSameWireForm) {
  EXPECT_EQ(Decode(SumSpec(5)).wire_spec, Decode(SumSpec(5)).wire_spec);
  EXPECT_NE(Decode(SumSpec(5)).wire_spec, Decode(SumSpec(6)).wire_spec);
}

struct BadSpec {
  const char* name;
  std::function<void(v1::RoundSpec&)> spoil;
  Code code;
  const char* message;
};

class BadSpecTest : public ::testing::TestWithParam<BadSpec> {};

TEST_P(BadSpecTest, Decode_SpecWithoutMeaning_IsRefusedWithItsPlace) {
  v1::RoundSpec spec = SumSpec();
  GetParam().spoil(spec);
  EXPECT_THAT(DecodeRoundSpec(spec, Limits{}), Fails(GetParam().code, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSpecTest,
    ::testing::Values(
        BadSpec{"NoTensors", [](auto& s) { s.clear_tensors(); }, Code::kInvalidArgument, "no tensors"},
        BadSpec{"NoDtype", [](auto& s) { s.mutable_tensors(0)->clear_dtype(); }, Code::kInvalidArgument,
                "tensor 'v': dtype"},
        BadSpec{"UnknownDtype", [](auto& s) { s.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(77)); },
                Code::kInvalidArgument, "dtype 77"},
        BadSpec{"UnknownOp", [](auto& s) { s.mutable_aggregation()->set_op(static_cast<v1::Op>(77)); },
                Code::kInvalidArgument, "OP_COORDINATE_MEAN"},
        BadSpec{
            "UnknownTensorNumerics",
            [](auto& s) { s.mutable_tensors(0)->mutable_aggregation()->set_numerics(static_cast<v1::Numerics>(9)); },
            Code::kInvalidArgument, "tensor 'v': numerics 9"},
        BadSpec{"NameTwice", [](auto& s) { *s.add_tensors() = s.tensors(0); }, Code::kInvalidArgument, "given twice"},
        BadSpec{"NoName", [](auto& s) { s.mutable_tensors(0)->clear_name(); }, Code::kInvalidArgument, "name"},
        BadSpec{"LongName", [](auto& s) { s.mutable_tensors(0)->set_name(std::string(257, 'x')); },
                Code::kInvalidArgument, "257 bytes"},
        BadSpec{"ManyTensors",
                [](auto& s) {
                  for (int i = 0; i < 1000; ++i) s.add_tensors();
                },
                Code::kResourceExhausted, "max_tensors 1000"},
        BadSpec{"Width", [](auto& s) { s.mutable_tensors(0)->set_row_width(65537); }, Code::kResourceExhausted,
                "max_row_width 65536"},
        BadSpec{"MaxSubmissions", [](auto& s) { s.set_max_submissions(1'000'001); }, Code::kResourceExhausted,
                "max_submissions 1000001"},
        BadSpec{"MinAboveMax",
                [](auto& s) {
                  s.set_max_submissions(2);
                  s.set_min_submissions(3);
                },
                Code::kInvalidArgument, "min_submissions 3"},
        BadSpec{"MaxTuples", [](auto& s) { s.set_max_tuples_per_submission(uint64_t{1} << 40); },
                Code::kResourceExhausted, "max_tuples_per_submission"},
        BadSpec{"MaxBytes", [](auto& s) { s.set_max_bytes_per_submission(uint64_t{1} << 40); },
                Code::kResourceExhausted, "max_bytes_per_submission"},
        BadSpec{"ZeroDeadline", [](auto& s) { s.mutable_deadline(); }, Code::kInvalidArgument, "deadline"},
        BadSpec{"NegativeDeadline", [](auto& s) { s.mutable_deadline()->set_seconds(-1); }, Code::kInvalidArgument,
                "deadline"},
        BadSpec{"MalformedDeadline", [](auto& s) { s.mutable_deadline()->set_nanos(1'000'000'000); },
                Code::kInvalidArgument, "deadline"},
        BadSpec{"LongTtl", [](auto& s) { s.mutable_result_ttl()->set_seconds(3601); }, Code::kResourceExhausted,
                "max_result_ttl 1h"},
        BadSpec{"ZeroTtl", [](auto& s) { s.mutable_result_ttl(); }, Code::kInvalidArgument, "result_ttl"},
        BadSpec{"UnusedBound", [](auto& s) { s.mutable_aggregation()->set_value_bound(1); }, Code::kInvalidArgument,
                "value_bound is for fixed_point"},
        BadSpec{"UnusedWeightBound", [](auto& s) { s.mutable_aggregation()->set_weight_bound(1); },
                Code::kInvalidArgument, "weight_bound is for fixed_point"},
        BadSpec{"UnusedClip", [](auto& s) { s.mutable_aggregation()->set_on_bound(v1::BOUND_POLICY_CLIP); },
                Code::kInvalidArgument, "on_bound clip is for fixed_point"},
        BadSpec{"UnusedBoundOfATensor",
                [](auto& s) {
                  *s.add_tensors() = s.tensors(0);
                  s.mutable_tensors(1)->set_name("w");
                  s.mutable_tensors(0)->mutable_aggregation()->set_value_bound(1);
                  v1::AggregationSpec* fixed = s.mutable_tensors(1)->mutable_aggregation();
                  fixed->set_numerics(v1::NUMERICS_FIXED_POINT);
                  fixed->set_value_bound(1);
                  s.set_max_submissions(10);
                },
                Code::kInvalidArgument, "tensor 'v': value_bound is for fixed_point"},
        BadSpec{"ModularFloat", [](auto& s) { s.mutable_tensors(0)->set_modular(true); }, Code::kInvalidArgument,
                "tensor 'v'"},
        BadSpec{"FixedPointWithoutBound",
                [](auto& s) { s.mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT); },
                Code::kInvalidArgument, "value_bound"},
        BadSpec{"DenseWithoutNumRows",
                [](auto& s) {
                  s.mutable_tensors(0)->set_num_rows(0);
                  s.mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
                },
                Code::kInvalidArgument, "num_rows"}),
    [](const auto& test) { return test.param.name; });

TEST(RoundNameTest, Parse_OnlyRoundsSlashId_IsTaken) {
  const auto id = ParseRoundName("rounds/A-z.0_9");
  ASSERT_THAT(id, IsOk());
  EXPECT_EQ(*id, "A-z.0_9");
  for (const char* name : {"", "rounds", "r", "Rounds/a"}) {
    EXPECT_THAT(ParseRoundName(name),
                Fails(Code::kInvalidArgument,
                      absl::StrCat("the name '", name, "' is not a round name; round names are rounds/ID")));
  }
  for (const char* bad : {"", "a/b", "a b", "\xc3\xa4", ".", "..", ".a", "-a"}) {
    EXPECT_THAT(ParseRoundName(absl::StrCat("rounds/", bad)),
                Fails(Code::kInvalidArgument, HasSubstr(absl::StrCat("round_id '", bad, "' is not 1 to 128 of"))));
  }
  EXPECT_THAT(ParseRoundName("rounds/" + std::string(128, 'a')), IsOk());
  EXPECT_THAT(ParseRoundName("rounds/" + std::string(129, 'a')), HasCode(Code::kInvalidArgument));
}

TEST(SpecCodecTest, Decode_OnEmpty_IsThatOfTheTensorOrOfTheRound) {
  v1::RoundSpec spec = SumSpec();
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(1)->set_name("w");
  spec.mutable_tensors(1)->set_layout(v1::TENSOR_LAYOUT_DENSE);
  EXPECT_EQ(Decode(spec).tensors[0].aggregation.on_empty, EmptyPolicy::kFail);
  spec.mutable_aggregation()->set_on_empty(v1::EMPTY_POLICY_KEEP);
  spec.mutable_tensors(1)->mutable_aggregation()->set_on_empty(v1::EMPTY_POLICY_FAIL);
  EXPECT_EQ(Decode(spec).tensors[0].aggregation.on_empty, EmptyPolicy::kKeep);
  EXPECT_EQ(Decode(spec).tensors[1].aggregation.on_empty, EmptyPolicy::kFail);
  spec.mutable_aggregation()->set_on_empty(static_cast<v1::EmptyPolicy>(9));
  EXPECT_THAT(DecodeRoundSpec(spec, Limits{}), Fails(Code::kInvalidArgument, HasSubstr("on_empty 9 is unknown")));
}

v1::RoundSpec Shaped(uint64_t num_rows, uint32_t row_width, const std::vector<uint64_t>& sizes) {
  v1::RoundSpec spec = SumSpec(num_rows);
  spec.mutable_tensors(0)->set_row_width(row_width);
  spec.mutable_tensors(0)->mutable_shape()->mutable_sizes()->Add(sizes.begin(), sizes.end());
  return spec;
}

TEST(SpecCodecTest, Decode_ShapeOfTheElements_IsKept) {
  const uint64_t huge = uint64_t{1} << 63;
  using Sizes = std::vector<uint64_t>;
  for (const v1::RoundSpec& spec :
       {Shaped(6, 1, {6}), Shaped(6, 1, {2, 3}), Shaped(3, 2, {3, 2}), Shaped(2, 3, {3, 2}), Shaped(1, 1, {}),
        Shaped(huge, 4, {huge, 4}), Shaped(huge, 4, {4, huge}), Shaped(1, 1, Sizes(32, 1))}) {
    v1::RoundSpec kept;
    ASSERT_TRUE(kept.ParseFromString(Decode(spec).wire_spec));
    EXPECT_EQ(kept.SerializeAsString(), spec.SerializeAsString());
    EXPECT_TRUE(kept.tensors(0).has_shape());
  }
}

TEST(SpecCodecTest, Decode_AnotherShape_IsRefused) {
  const uint64_t huge = uint64_t{1} << 63;
  using Sizes = std::vector<uint64_t>;
  const auto refusal = [](const v1::RoundSpec& spec) { return DecodeRoundSpec(spec, Limits{}); };
  EXPECT_THAT(refusal(Shaped(6, 1, {2, 4})),
              Fails(Code::kInvalidArgument,
                    HasSubstr("tensor 'v': shape (2, 4) does not have num_rows 6 x row_width 1 elements")));
  EXPECT_THAT(refusal(Shaped(2, 1, {})), Fails(Code::kInvalidArgument, HasSubstr("shape ()")));
  EXPECT_THAT(refusal(Shaped(0, 1, {2})), Fails(Code::kInvalidArgument, HasSubstr("num_rows 0")));
  EXPECT_THAT(refusal(Shaped(1, 1, {0})), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(refusal(Shaped(1, 1, Sizes(33, 1))), Fails(Code::kInvalidArgument, HasSubstr("33 axes; up to 32")));
  // Products that are right modulo 2^64 or 2^128, or would saturate alike.
  EXPECT_THAT(refusal(Shaped(huge, 4, {huge, 8})), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(refusal(Shaped(4, 1, {huge + 1, 4})), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(refusal(Shaped(4, 1, {huge, huge, 4})), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(refusal(Shaped(4, 1, {huge, huge, huge, 0, 4})), HasCode(Code::kInvalidArgument));
  const uint64_t half = uint64_t{1} << 32;
  EXPECT_THAT(refusal(Shaped(1, 1, {half, half, half, half})), HasCode(Code::kInvalidArgument));
}

}  // namespace
}  // namespace sparseagg::service
