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
        BadSpec{"ManyTensors",
                [](auto& s) {
                  for (int i = 0; i < 1000; ++i) s.add_tensors();
                },
                Code::kResourceExhausted, "max_tensors 1000"},
        BadSpec{"Width", [](auto& s) { s.mutable_tensors(0)->set_row_width(65537); }, Code::kResourceExhausted,
                "max_row_width 65536"},
        BadSpec{"MaxSubmissions", [](auto& s) { s.set_max_submissions(1'000'001); }, Code::kResourceExhausted,
                "max_submissions 1000001"},
        BadSpec{"MaxTuples", [](auto& s) { s.set_max_tuples_per_submission(uint64_t{1} << 40); },
                Code::kResourceExhausted, "max_tuples_per_submission"},
        BadSpec{"MaxBytes", [](auto& s) { s.set_max_bytes_per_submission(uint64_t{1} << 40); },
                Code::kResourceExhausted, "max_bytes_per_submission"},
        BadSpec{"NegativeDeadline", [](auto& s) { s.mutable_deadline()->set_seconds(-1); }, Code::kInvalidArgument,
                "deadline"},
        BadSpec{"MalformedDeadline", [](auto& s) { s.mutable_deadline()->set_nanos(1'000'000'000); },
                Code::kInvalidArgument, "deadline"},
        BadSpec{"LongTtl", [](auto& s) { s.mutable_result_ttl()->set_seconds(3601); }, Code::kResourceExhausted,
                "max_result_ttl 1h"},
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
                "tensor 'v'"}),
    [](const auto& test) { return test.param.name; });

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
