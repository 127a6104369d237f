#include "service/gateway/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/gateway/http_message.h"
#include "service/gateway/router.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/tasks.pb.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Message>
Message Parsed(const absl::StatusOr<std::string>& bytes) {
  Message message;
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_TRUE(bytes.ok() && message.ParseFromString(*bytes));
  return message;
}

v1::UpdateChunk FromQuery(const HttpFields& parameters) {
  return Parsed<v1::UpdateChunk>(QueryToMessage(v1::UpdateChunk::descriptor(), parameters));
}

// Fails if a message of the type can contain another one of it.
void ExpectNoneOfItself(const google::protobuf::Descriptor* type,
                        std::set<const google::protobuf::Descriptor*>* above) {
  ASSERT_TRUE(above->insert(type).second) << type->name();
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->message_type() != nullptr) ExpectNoneOfItself(type->field(i)->message_type(), above);
  }
  above->erase(type);
}

absl::Status QueryError(const google::protobuf::Descriptor* type, const HttpFields& parameters) {
  return QueryToMessage(type, parameters).status();
}

TEST(Json, Values_AtTheLimitAndBeyond) {
  const auto with_labels = [](size_t number) {
    std::string json = R"({"names": [)";
    for (size_t i = 0; i < number; ++i) json += i == 0 ? R"(",{[")" : R"(,",{[")";
    return JsonToMessage(v1::CancelTasksRequest::descriptor(), json + "]}");
  };
  // The object and the list count.
  EXPECT_TRUE(with_labels(kMaxJsonValues - 2).ok());
  EXPECT_THAT(std::string(with_labels(kMaxJsonValues - 1).status().message()), HasSubstr("more than 100000 values"));
}

// Nothing is read deeper than its type goes.
TEST(Json, Depth_IsThatOfTheType) {
  for (const std::string open : {"[", "{", R"({"name":)", R"({"spec":)", R"({"spec":{"tensors":[)"}) {
    std::string json;
    for (int i = 0; i < 100'000; ++i) json += open;
    EXPECT_EQ(JsonToMessage(v1::CreateRoundRequest::descriptor(), json).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (size_t i = 0; i < kNumMethods; ++i) {
    std::set<const google::protobuf::Descriptor*> above;
    ExpectNoneOfItself(DescriptorOf(static_cast<Method>(i))->input_type(), &above);
  }
}

std::string CreateError(const std::string& json) {
  const absl::Status status = JsonToMessage(v1::CreateRoundRequest::descriptor(), json).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
  return std::string(status.message());
}

TEST(Json, FieldGivenTwice_IsRefusedByItsName) {
  constexpr char kTensor[] = R"("name": "w", "dtype": "DTYPE_FLOAT32")";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"roundId": "a", "roundId": "b"})", "round_id is given twice"},
      {R"({"roundId": "a", "roundId": "a"})", "round_id is given twice"},
      {R"({"roundId": "a", "round_id": "b"})", "round_id is given twice"},
      {R"({"round_id": null, "roundId": "b"})", "round_id is given twice"},
      {R"({"spec": {}, "roundId": "a", "spec": {}})", "spec is given twice"},
      {R"({"spec": {"deadline": "5s", "deadline": "6s"}})", "spec.deadline is given twice"},
      {absl::StrCat(R"({"spec": {"tensors": [{)", kTensor, R"(}, {)", kTensor, R"(, "name": "v"}]}})"),
       "spec.tensors[1].name is given twice"},
  };
  for (const auto& [json, text] : cases) EXPECT_THAT(CreateError(json), HasSubstr(text)) << json;
  // Not twice: one in each of two messages.
  EXPECT_TRUE(JsonToMessage(v1::CreateRoundRequest::descriptor(),
                            absl::StrCat(R"({"spec": {"tensors": [{)", kTensor, R"(}, {)", kTensor, "}]}}"))
                  .ok());
}

TEST(Json, ShortNamesOfEnumValues_AreThoseOfTheProto) {
  const auto round = Parsed<v1::CreateRoundRequest>(JsonToMessage(v1::CreateRoundRequest::descriptor(), R"({"spec": {
      "aggregation": {"op": "mean", "weighting": "BY_WEIGHT", "numerics": null},
      "tensors": [{"name": "float32", "dtype":"float32"}, {"dtype": "Int64", "name": "é"}, {"dtype": "DTYPE_UINT64"}]}})"));
  EXPECT_EQ(round.spec().aggregation().op(), v1::OP_MEAN);
  EXPECT_EQ(round.spec().aggregation().weighting(), v1::WEIGHTING_BY_WEIGHT);
  ASSERT_EQ(round.spec().tensors_size(), 3);
  EXPECT_EQ(round.spec().tensors(0).dtype(), v1::DTYPE_FLOAT32);
  EXPECT_EQ(round.spec().tensors(0).name(), "float32");
  EXPECT_EQ(round.spec().tensors(1).dtype(), v1::DTYPE_INT64);
  EXPECT_EQ(round.spec().tensors(1).name(), "é");
  EXPECT_EQ(round.spec().tensors(2).dtype(), v1::DTYPE_UINT64);
  EXPECT_THAT(CreateError(R"({"spec": {"tensors": [{"dtype": "float31"}]}})"), HasSubstr("float31"));

  const auto format = [](int count) {
    std::string json = R"({"format": {"keyEncodings": ["u32")";
    for (int i = 1; i < count; ++i) absl::StrAppend(&json, R"(,"Delta_Bitpacked")");
    return JsonToMessage(v1::GetResultRequest::descriptor(), json + "]}}");
  };
  const int most = v1::KeyEncoding_descriptor()->value_count();
  EXPECT_EQ(Parsed<v1::GetResultRequest>(format(most)).format().key_encodings(1), v1::KEY_ENCODING_DELTA_BITPACKED);
  EXPECT_THAT(format(most + 1).status().message(), HasSubstr("format.key_encodings has more than"));
}

TEST(Json, FieldThatNobodyKnows_IsRefusedByItsName) {
  EXPECT_THAT(CreateError(R"({"sepc": {}})"), AllOf(HasSubstr(R"(unknown field "sepc"; known are round_id, spec)"),
                                                    HasSubstr("this server is older than the client")));
  EXPECT_THAT(CreateError(R"({"spec": {"tensors": [{"kind": null}]}})"),
              HasSubstr(R"(unknown field "kind" in spec.tensors[0]; known are name, dtype)"));
  // No encoder writes a name so, and the converter would decode it.
  EXPECT_THAT(CreateError(R"({"\u0072oundId": "a"})"), HasSubstr("unknown field"));
}

TEST(Json, ValueOfAnotherType_IsRefusedByItsField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"roundId": 5})", "round_id must be a string"},
      {R"({"roundId": true})", "round_id must be a string"},
      {R"({"roundId": ["a"]})", "round_id must be a string"},
      {R"({"roundId": {}})", "round_id must be a string"},
      {R"({"spec": "x"})", "spec must be an object"},
      {R"({"spec": []})", "spec must be an object"},
      {R"({"spec": 1})", "spec must be an object"},
      {R"({"spec": {"tensors": {}}})", "spec.tensors must be a list"},
      {R"({"spec": {"tensors": "w"}})", "spec.tensors must be a list"},
      {R"({"spec": {"tensors": [null]}})", "spec.tensors[0] must be an object"},
      {R"({"spec": {"tensors": [[]]}})", "spec.tensors[0] must be an object"},
      {R"({"spec": {"tensors": [{"modular": "true"}]}})", "spec.tensors[0].modular must be true or false"},
      {R"({"spec": {"tensors": [{"modular": 1}]}})", "spec.tensors[0].modular must be true or false"},
      {R"({"spec": {"tensors": [{"num_rows": true}]}})", "spec.tensors[0].num_rows must be a number"},
      {R"({"spec": {"tensors": [{"num_rows": [1]}]}})", "spec.tensors[0].num_rows must be a number"},
      {R"({"spec": {"tensors": [{"dtype": true}]}})", "spec.tensors[0].dtype must be the name of a value"},
      {R"({"spec": {"tensors": [{"shape": {"sizes": 5}}]}})", "spec.tensors[0].shape.sizes must be a list"},
      {R"({"spec": {"deadline": 5}})", "spec.deadline must be a string"},
      {R"({"spec": {"deadline": {"seconds": 5}}})", "spec.deadline must be a string"},
      {R"({"spec": {"aggregation": {"fill": {}}}})", "spec.aggregation.fill must be a number"},
      // Left to the converter.
      {R"({"spec": {"tensors": [{"num_rows": 1.5}]}})", "1.5"},
      {R"({"spec": {"tensors": [{"num_rows": -1}]}})", "-1"},
      {R"({"spec": {"tensors": [{"dtype": "FLOAT99"}]}})", "FLOAT99"},
      {R"({"spec": {"deadline": "5"}})", "deadline"},
      // float64 has no 2^53 + 1.
      {R"({"spec": {"tensors": [{"num_rows": 9007199254740993.0}]}})", "too large an integer for a fraction"},
      {R"({"spec": {"tensors": [{"num_rows": 1e16}]}})", "too large an integer for a fraction"},
  };
  for (const auto& [json, text] : cases) EXPECT_THAT(CreateError(json), HasSubstr(text)) << json;
}

// A null in a list would be left out, and so this one would close the round with everybody's submissions.
TEST(Json, NullInAList_IsRefused) {
  const absl::Status close =
      JsonToMessage(v1::CloseRoundRequest::descriptor(), R"({"onlyClientIds": [null]})").status();
  EXPECT_THAT(std::string(close.message()), HasSubstr("only_client_ids[0] must be a string"));
}

TEST(Json, WhatIsNotJson_IsRefused) {
  for (const char* json : {"",
                           " ",
                           "null",
                           "5",
                           R"("x")",
                           "[]",
                           "{",
                           "}",
                           R"({"roundId")",
                           R"({"roundId":})",
                           R"({"roundId": "a")",
                           R"({"roundId" "a"})",
                           R"({"roundId": "a",})",
                           R"({,})",
                           R"({"roundId": "a"} x)",
                           R"({"roundId": "a"}{})",
                           R"({roundId: "a"})",
                           "{'roundId': 'a'}",
                           R"({"roundId": 'a'})",
                           R"({/**/"roundId": "a"})",
                           R"({"roundId": "a})",
                           R"({"roundId": "\q"})",
                           R"({"roundId": "\u12"})",
                           R"({"roundId": "\u12g4"})",
                           R"({"roundId": "\ud800"})",
                           R"({"roundId": "\ud800a"})",
                           R"({"roundId": "\ud800\ud800"})",
                           R"({"roundId": "\udc00"})",
                           "{\"roundId\": \"a\nb\"}",
                           "{\"roundId\": \"\xff\"}",
                           "{\"roundId\": \"\xed\xa0\x80\"}",
                           "{\"roundId\": \"\xc0\x80\"}",
                           "{\"round\xffId\": \"a\"}",
                           "\xef\xbb\xbf{}",
                           "{}\v",
                           R"({"spec": {"tensors": [,]}})",
                           R"({"spec": {"tensors": [{},]}})",
                           R"({"spec": {"tensors": [{} {}]}})",
                           R"({"spec": {"tensors": [{})",
                           R"({"spec": {"minSubmissions": 01}})",
                           R"({"spec": {"minSubmissions": 0x1}})",
                           R"({"spec": {"minSubmissions": +1}})",
                           R"({"spec": {"minSubmissions": .5}})",
                           R"({"spec": {"minSubmissions": 1.}})",
                           R"({"spec": {"minSubmissions": 1e}})",
                           R"({"spec": {"minSubmissions": -}})",
                           R"({"spec": {"minSubmissions": NaN}})",
                           R"({"spec": {"minSubmissions": 1 2}})",
                           R"({"spec": nul})",
                           R"({"spec": True})"}) {
    EXPECT_THAT(CreateError(json), HasSubstr("not the JSON of a CreateRoundRequest: ")) << json;
  }
  EXPECT_FALSE(JsonToMessage(v1::CreateRoundRequest::descriptor(), absl::string_view("{}\0", 3)).ok());
}

// In a buffer without a byte behind it, so that a sanitizer sees what is read there.
TEST(Json, BodyCutAnywhere_IsRefused) {
  const std::string body =
      R"({"clientId":"a","slices":[{"tensor":"w","keys":[1,22],"values":[-0.5,1e3],"valueEncoding":"float32"}],"last":true})";
  const auto parse = [](const std::vector<char>& text) {
    return JsonToMessage(v1::UpdateChunk::descriptor(), {text.data(), text.size()}, /*takes_numbers=*/true);
  };
  EXPECT_TRUE(parse({body.begin(), body.end()}).ok());
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_FALSE(parse({body.begin(), body.begin() + size}).ok()) << body.substr(0, size);
  }
}

TEST(Json, EveryWayToWriteAValue_IsTaken) {
  const auto round = Parsed<v1::CreateRoundRequest>(JsonToMessage(v1::CreateRoundRequest::descriptor(), R"( {
    "round_id" : "\u0061\/\"\\\b\f\n\r\t\u00e4\ud83d\ude00" , "spec":{ "tensors" : [ { "dtype": 1, "num_rows": "10", "row_width": 2.0 },
      {"dtype":"DTYPE_FLOAT16","numRows":9007199254740993,"modular":false} , { } ], "minSubmissions": 1e2,
      "deadline": "1.5s", "aggregation": {"fill": -1.5E-3, "denseThreshold": "0.5", "fixedDivisor": 0} } })"));
  EXPECT_EQ(round.round_id(), "a/\"\\\b\f\n\r\tä😀");
  EXPECT_EQ(round.spec().tensors(0).dtype(), v1::DTYPE_FLOAT32);
  EXPECT_EQ(round.spec().tensors(0).row_width(), 2u);
  EXPECT_EQ(round.spec().tensors(1).num_rows(), 9007199254740993u);
  EXPECT_EQ(round.spec().tensors_size(), 3);
  EXPECT_EQ(round.spec().min_submissions(), 100u);
  EXPECT_EQ(round.spec().aggregation().fill(), -1.5e-3);
  EXPECT_TRUE(Parsed<v1::CreateRoundRequest>(JsonToMessage(v1::CreateRoundRequest::descriptor(), "{}"))
                  .SerializeAsString()
                  .empty());
}

// Of two clients, whose ids both became U+FFFD, one was lost.
TEST(Json, QueryThatIsNotUtf8_IsRefused) {
  for (const char* text : {"\xff", "a\xfe", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc3"}) {
    const absl::Status error = QueryError(v1::UpdateChunk::descriptor(), {{"client_id", text}});
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error.message(), "'client_id' is not UTF-8");
    EXPECT_EQ(QueryError(v1::UpdateChunk::descriptor(), {{text, "a"}}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(
            QueryError(v1::CloseRoundRequest::descriptor(), {{"only_client_ids", absl::StrCat("a,", text)}}).message()),
        HasSubstr("not UTF-8"));
  }
  EXPECT_EQ(FromQuery({{"client_id", "ä😀"}}).client_id(), "ä😀");
}

TEST(Json, Query_FieldInBothForms_IsGivenTwice) {
  EXPECT_THAT(std::string(QueryError(v1::UpdateChunk::descriptor(), {{"client_id", "a"}, {"clientId", "b"}}).message()),
              HasSubstr("'client_id' occurs 2 times"));
}

TEST(Json, Query_FieldsOfAllKinds) {
  const v1::UpdateChunk chunk = FromQuery(
      {{"client_id", "c\"\n"}, {"sequence", "7"}, {"last", "true"}, {"weight", "0.5"}, {"uploadTag", "/wE="}});
  EXPECT_EQ(chunk.client_id(), "c\"\n");
  EXPECT_EQ(chunk.sequence(), 7u);
  EXPECT_TRUE(chunk.last());
  EXPECT_EQ(chunk.weight(), 0.5);
  EXPECT_EQ(chunk.upload_tag(), "\xff\x01");
  const auto result = Parsed<v1::GetResultRequest>(
      QueryToMessage(v1::GetResultRequest::descriptor(), {{"range.begin", "5"},
                                                          {"range.end", "9"},
                                                          {"format.key_encodings", "DELTA_BITPACKED,IMPLICIT"},
                                                          {"format.key_encodings", "KEY_ENCODING_U32"}}));
  EXPECT_EQ(result.range().begin(), 5u);
  EXPECT_EQ(result.format().key_encodings_size(), 3);
  EXPECT_EQ(result.format().key_encodings(2), v1::KEY_ENCODING_U32);
  const auto wait =
      Parsed<v1::WaitRoundRequest>(QueryToMessage(v1::WaitRoundRequest::descriptor(), {{"timeout", "1.5s"}}));
  EXPECT_EQ(wait.timeout().nanos(), 500'000'000);
}

TEST(Json, Query_Errors) {
  const auto* const type = v1::GetResultRequest::descriptor();
  for (const auto& [name, value, text] : {std::tuple{"nothing", "1", "unknown parameter \"nothing\"; known are round"},
                                          {"max_page_bytes", "-1", "max_page_bytes"},
                                          {"round.part", "1", "'round' has no parts"},
                                          {"range", "1", "GetResultRequest"},
                                          {"range.middle", "1", "known are begin, end"},
                                          {"format.value_encoding", "FLOAT99", "FLOAT99"}}) {
    const absl::Status error = QueryError(type, {{name, value}});
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
  }
  EXPECT_THAT(std::string(QueryError(type, {{"round", "a"}, {"round", "b"}}).message()), HasSubstr("occurs 2 times"));
  EXPECT_THAT(std::string(QueryError(v1::UpdateChunk::descriptor(), {{"slices.keys", "a"}}).message()),
              HasSubstr("list of messages"));
  for (const char* const tag : {"a", "a.b", "\xff", "/w E", " /wE="}) {
    EXPECT_EQ(QueryError(v1::UpdateChunk::descriptor(), {{"upload_tag", tag}}).message(),
              "'upload_tag' is not base64, of which a query must write + as %2B");
  }
}

TEST(Json, ParseQuery_EscapesAndLimits) {
  const auto parsed = ParseQuery("a=1%20%2B&b=x+y&c");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, (HttpFields{{"a", "1 +"}, {"b", "x y"}, {"c", ""}}));
  EXPECT_FALSE(ParseQuery("a=%2").ok());
  EXPECT_FALSE(ParseQuery("a=%xy").ok());
  std::string many;
  for (int i = 0; i < 64; ++i) many += "a=1&";
  EXPECT_TRUE(ParseQuery(many).ok());
  EXPECT_FALSE(ParseQuery(many + "a=1").ok());
}

TEST(Json, Quote_EscapesAndReplaces) {
  EXPECT_EQ(JsonQuote("a\"\\\n\x7f"), R"("a\"\\\u000a\u007f")");
  EXPECT_EQ(JsonQuote("ä€😀"), "\"ä€😀\"");
  EXPECT_EQ(JsonQuote("\xff"
                      "a\xc3"),
            "\"\xEF\xBF\xBD"
            "a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace sparseagg::service
