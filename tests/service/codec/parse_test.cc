// What is made of a message is bounded before it is made, and what a spec may say.
#include "service/codec/parse.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "service/admission/memory_shares.h"
#include "service/auth/authorize.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/round_config.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint64_t kParseSeed = 20261123;

// Returns: the bytes in pieces of five.
absl::Cord Received(const std::string& bytes) {
  absl::Cord cord;
  for (size_t begin = 0; begin < bytes.size(); begin += 5) {
    auto* const piece = new std::string(bytes.substr(begin, 5));
    cord.Append(absl::MakeCordFromExternal(*piece, [piece] { delete piece; }));
  }
  return cord;
}

v1::RoundSpec SpecOf(int tensors) {
  v1::RoundSpec spec;
  for (int i = 0; i < tensors; ++i) spec.add_tensors()->mutable_aggregation();
  return spec;
}

TEST(ParseTest, ParseSpec_MoreTensorsThanThereMayBe_MakesNoneOfThem) {
  Limits limits;
  limits.max_tensors = 10;
  v1::CreateRoundRequest sent;
  *sent.mutable_spec() = SpecOf(11);
  v1::CreateRoundRequest request;
  EXPECT_THAT(ParseSpec(Received(sent.SerializeAsString()), limits, &request),
              Fails(Code::kResourceExhausted, HasSubstr("11 tensors are beyond the server's max_tensors 10")));
  EXPECT_FALSE(request.has_spec());
  *sent.mutable_spec() = SpecOf(10);
  EXPECT_THAT(ParseSpec(Received(sent.SerializeAsString()), limits, &request), IsOk());
  EXPECT_EQ(request.spec().tensors_size(), 10);
}

TEST(ParseTest, ParseSpec_ListOfNumbers_CountsEachOfThem) {
  Limits limits;
  limits.max_tensors = 10;
  v1::StreamResultRequest sent;
  for (int i = 0; i < 5000; ++i) sent.mutable_format()->add_key_encodings(v1::KEY_ENCODING_U32);
  v1::StreamResultRequest request;
  EXPECT_THAT(ParseSpec(Received(sent.SerializeAsString()), limits, &request),
              Fails(Code::kResourceExhausted, HasSubstr("fields")));
}

TEST(ParseTest, ParseSpec_AllFieldsOfAllTensors_IsTaken) {
  Limits limits;
  limits.max_tensors = 500;
  v1::CreateRoundRequest sent;
  for (uint64_t i = 0; i < limits.max_tensors; ++i) {
    v1::TensorSpec* tensor = sent.mutable_spec()->add_tensors();
    tensor->set_name(std::string(64, 'x'));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->set_num_rows(1 << 20);
    tensor->set_row_width(1 << 9);
    tensor->set_layout(v1::TENSOR_LAYOUT_DENSE);
    tensor->set_modular(true);
    for (int axis = 0; axis < 4; ++axis) tensor->mutable_shape()->add_sizes(1 << 20);
    v1::AggregationSpec* aggregation = tensor->mutable_aggregation();
    const auto* descriptor = v1::AggregationSpec::descriptor();
    for (int f = 0; f < descriptor->field_count(); ++f) {
      const auto* field = descriptor->field(f);
      using Field = google::protobuf::FieldDescriptor;
      const auto* reflection = aggregation->GetReflection();
      if (field->cpp_type() == Field::CPPTYPE_ENUM) reflection->SetEnumValue(aggregation, field, 1);
      if (field->cpp_type() == Field::CPPTYPE_BOOL) reflection->SetBool(aggregation, field, true);
      if (field->cpp_type() == Field::CPPTYPE_UINT32) reflection->SetUInt32(aggregation, field, 1);
      if (field->cpp_type() == Field::CPPTYPE_DOUBLE) reflection->SetDouble(aggregation, field, 1);
    }
  }
  v1::CreateRoundRequest request;
  EXPECT_THAT(ParseSpec(Received(sent.SerializeAsString()), limits, &request), IsOk());
}

TEST(ParseTest, ParseIdList_Limits_HoldBeforeTheListIsMade) {
  Limits limits;
  limits.max_message_bytes = 1 << 20;
  limits.memory_limit_bytes = uint64_t{256} << 20;
  const uint64_t most = MaxListedIds(limits);
  ASSERT_GT(most, 100'000);
  ASSERT_LT(most, 500'000);
  v1::CloseRoundRequest sent;
  for (uint64_t i = 0; i < most; ++i) sent.add_only_client_ids("");
  v1::CloseRoundRequest request;
  ASSERT_THAT(ParseIdList(Received(sent.SerializeAsString()), limits, &request), IsOk());
  EXPECT_EQ(request.only_client_ids_size(), most);
  sent.set_round("x");
  v1::CloseRoundRequest untouched;
  EXPECT_THAT(ParseIdList(Received(sent.SerializeAsString()), limits, &untouched), HasCode(Code::kResourceExhausted));
  EXPECT_EQ(untouched.only_client_ids_size(), 0);
  sent.set_round(std::string(1 << 20, 'x'));
  EXPECT_THAT(ParseIdList(Received(sent.SerializeAsString()), limits, &untouched),
              Fails(Code::kResourceExhausted, HasSubstr("max_message_bytes")));
  std::string cut = sent.SerializeAsString();
  cut.resize(10'000);
  EXPECT_THAT(ParseIdList(Received(cut), limits, &untouched), HasCode(Code::kInvalidArgument));
}

// Whatever else is in it: fields that nobody knows, of another type, in groups, cut short.
TEST(ParseTest, ParseSpec_RefusesWhatProtocolBuffersDoes_AndUnknownFields) {
  constexpr int kTrials = 5000;
  int num_taken = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << kParseSeed + static_cast<uint64_t>(trial));
    std::mt19937_64 random(kParseSeed + static_cast<uint64_t>(trial));
    v1::CreateRoundRequest sent;
    sent.set_round_id("r");
    *sent.mutable_spec() = SpecOf(static_cast<int>(random() % 4));
    sent.mutable_spec()->mutable_deadline()->set_seconds(5);
    if (sent.spec().tensors_size() > 0) *sent.mutable_spec()->mutable_tensors(0) = SumSpec().tensors(0);
    std::string bytes = sent.SerializeAsString();
    if (random() % 4 == 0) bytes += std::string("\x7b\x0a\x01\x01\x12\x02\x08\x05\x7c", 9);  // a group of what is known
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    for (uint64_t i = random() % 3; i > 0 && !bytes.empty(); --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::CreateRoundRequest plain;
    const bool parses = plain.ParseFromString(bytes) && FindUnknownFields(plain).empty();
    v1::CreateRoundRequest request;
    ASSERT_EQ(ParseSpec(Received(bytes), Limits{}, &request).ok(), parses);
    num_taken += parses ? 1 : 0;
  }
  EXPECT_GT(num_taken, kTrials / 5);
  EXPECT_LT(num_taken, kTrials);
}

void AddUnknown(int number, google::protobuf::Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(number, 1);
}

TEST(ParseTest, UnknownFieldsOfASpec_AreRefusedByPlaceAndNumbers) {
  const auto refusal = [](const v1::CreateRoundRequest& sent) {
    v1::CreateRoundRequest request;
    const absl::Status status = ParseSpec(Received(sent.SerializeAsString()), Limits{}, &request);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return std::string(status.message());
  };
  constexpr char kReason[] = ": this server is older than the client";
  v1::CreateRoundRequest good;
  good.set_round_id("r");
  *good.mutable_spec() = SumSpec();
  *good.mutable_spec()->add_tensors() = SumSpec().tensors(0);
  good.mutable_spec()->mutable_deadline()->set_seconds(5);
  v1::CreateRoundRequest request;
  ASSERT_THAT(ParseSpec(Received(good.SerializeAsString()), Limits{}, &request), IsOk());

  const std::pair<std::string, std::function<google::protobuf::Message*(v1::CreateRoundRequest&)>> places[] = {
      {"CreateRoundRequest", [](auto& r) { return &r; }},
      {"spec of CreateRoundRequest", [](auto& r) { return r.mutable_spec(); }},
      {"spec.tensors[1] of CreateRoundRequest", [](auto& r) { return r.mutable_spec()->mutable_tensors(1); }},
      {"spec.tensors[1].aggregation of CreateRoundRequest",
       [](auto& r) { return r.mutable_spec()->mutable_tensors(1)->mutable_aggregation(); }},
      {"spec.tensors[0].shape of CreateRoundRequest",
       [](auto& r) { return r.mutable_spec()->mutable_tensors(0)->mutable_shape(); }},
      {"spec.aggregation of CreateRoundRequest", [](auto& r) { return r.mutable_spec()->mutable_aggregation(); }},
      {"spec.deadline of CreateRoundRequest", [](auto& r) { return r.mutable_spec()->mutable_deadline(); }}};
  for (const auto& [place, find] : places) {
    v1::CreateRoundRequest sent = good;
    AddUnknown(99, find(sent));
    EXPECT_EQ(refusal(sent), absl::StrCat("unknown field 99 in ", place, kReason));
    AddUnknown(98, find(sent));
    EXPECT_EQ(refusal(sent), absl::StrCat("unknown fields 98, 99 in ", place, kReason));
  }
}

// The list is that of aggregation.proto.
TEST(ParseTest, UnknownFieldsOfARequest_AreIgnoredOnlyWhereTheAnswerTellsWhatWasDone) {
  std::set<std::string> tolerant;
  for (size_t i = 0; i < kNumMethods; ++i) {
    const auto* const type =
        google::protobuf::DescriptorPool::generated_pool()
            ->FindMethodByName(absl::StrCat(ServiceName(static_cast<Method>(i)), ".", Name(static_cast<Method>(i))))
            ->input_type();
    const google::protobuf::Message* const empty =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type);
    const std::unique_ptr<google::protobuf::Message> sent(empty->New());
    AddUnknown(9999, sent.get());
    const std::unique_ptr<google::protobuf::Message> request(empty->New());
    if (Parse(Received(sent->SerializeAsString()), request.get()).ok()) tolerant.insert(type->name());
  }
  EXPECT_THAT(tolerant, ::testing::UnorderedElementsAre(
                            "GetServerInfoRequest", "GetRoundRequest", "ListRoundsRequest", "WaitRoundRequest",
                            "GetUploadStatusRequest", "ListSubmissionsRequest", "GetTaskRequest", "ListTasksRequest"));
  v1::GetResultRequest sent;
  AddUnknown(9, sent.mutable_format());
  v1::GetResultRequest request;
  EXPECT_THAT(Parse(Received(sent.SerializeAsString()), &request), IsOk());
  AddUnknown(9, sent.mutable_range());
  EXPECT_THAT(Parse(Received(sent.SerializeAsString()), &request),
              Fails(Code::kInvalidArgument, HasSubstr("unknown field 9 in range of GetResultRequest")));
}

RoundConfig Decode(const v1::RoundSpec& spec) {
  auto config = DecodeRoundSpec(spec, Limits{});
  EXPECT_THAT(config, IsOk());
  return *std::move(config);
}

// Numerics of a round are those of the tensors that have some.
TEST(SpecCodecTest, Decode_NumericsForOneTensorOfTwo_AreTaken) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(1)->set_name("w");
  spec.mutable_tensors(1)->mutable_aggregation()->set_op(v1::OP_MAX);
  const RoundConfig config = Decode(spec);
  EXPECT_EQ(config.tensors[0].aggregation.numerics, Numerics::kBinned);
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
        BadSpec{"UnknownNumerics", [](auto& s) { s.mutable_aggregation()->set_numerics(static_cast<v1::Numerics>(3)); },
                Code::kInvalidArgument, "numerics 3 is unknown here; known are"},
        BadSpec{"UnusedTrim", [](auto& s) { s.mutable_aggregation()->set_trim_fraction(0.1); }, Code::kInvalidArgument,
                "trim_fraction is for the op trimmed_mean"},
        BadSpec{"UnusedTrimOfATensor",
                [](auto& s) {
                  *s.add_tensors() = s.tensors(0);
                  s.mutable_tensors(1)->set_name("w");
                  s.mutable_tensors(0)->mutable_aggregation()->set_trim_fraction(0.1);
                  v1::AggregationSpec* trimmed = s.mutable_tensors(1)->mutable_aggregation();
                  trimmed->set_op(v1::OP_TRIMMED_MEAN);
                  trimmed->set_trim_fraction(0.1);
                },
                Code::kInvalidArgument, "tensor 'v': trim_fraction is for the op trimmed_mean"},
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
