#include "service/http/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/http/http_message.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/tasks.pb.h"

namespace sparseagg::service {
namespace {

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

absl::Status QueryError(const google::protobuf::Descriptor* type, const HttpFields& parameters) {
  return QueryToMessage(type, parameters).status();
}

TEST(Json, Message_BothWays) {
  const auto round = Parsed<v1::CreateRoundRequest>(JsonToMessage(
      v1::CreateRoundRequest::descriptor(),
      R"({"roundId": "r", "spec": {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "dimension": "18446744073709551615"}]}})"));
  EXPECT_EQ(round.spec().tensors(0).dimension(), UINT64_MAX);
  const auto json = MessageToJson(v1::CreateRoundRequest::descriptor(), round.SerializeAsString());
  ASSERT_TRUE(json.ok());
  EXPECT_THAT(*json, HasSubstr(R"("dimension":"18446744073709551615")"));
  EXPECT_THAT(*json, HasSubstr(R"("modular":false)"));
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

TEST(Json, Depth_AtTheLimitAndBeyond) {
  const auto nested = [](int depth) {
    return JsonToMessage(v1::GetRoundRequest::descriptor(),
                         absl::StrCat(std::string(depth, '['), std::string(depth, ']')))
        .status();
  };
  EXPECT_THAT(std::string(nested(kMaxJsonDepth).message()), HasSubstr("not the JSON"));
  EXPECT_THAT(std::string(nested(kMaxJsonDepth + 1).message()), HasSubstr("deeper than 32 levels at byte 32"));
  // Brackets in strings do not count.
  const std::string name = absl::StrCat(R"({"name": "\")", std::string(100, '['), "\"}");
  EXPECT_EQ(Parsed<v1::GetRoundRequest>(JsonToMessage(v1::GetRoundRequest::descriptor(), name)).name().size(), 101u);
}

TEST(Json, Query_FieldsOfAllKinds) {
  const v1::UpdateChunk chunk = FromQuery(
      {{"client_id", "c\"\n"}, {"sequence", "7"}, {"last", "true"}, {"weight", "0.5"}, {"uploadTag", "\xff\x01"}});
  EXPECT_EQ(chunk.client_id(), "c\"\n");
  EXPECT_EQ(chunk.sequence(), 7u);
  EXPECT_TRUE(chunk.last());
  EXPECT_EQ(chunk.weight(), 0.5);
  EXPECT_EQ(chunk.upload_tag(), "\xff\x01");
  const auto result = Parsed<v1::GetResultRequest>(
      QueryToMessage(v1::GetResultRequest::descriptor(), {{"range.begin", "5"},
                                                          {"range.end", "9"},
                                                          {"format.key_encodings", "DELTA_BITPACKED,BITMAP"},
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
  for (const auto& [name, value, text] : {std::tuple{"nothing", "1", "unknown parameter \"nothing\"; known are name"},
                                          {"page_size", "-1", "page_size"},
                                          {"name.part", "1", "'name' has no parts"},
                                          {"range", "1", "GetResultRequest"},
                                          {"range.middle", "1", "known are begin, end"},
                                          {"format.value_encoding", "FLOAT99", "FLOAT99"}}) {
    const absl::Status error = QueryError(type, {{name, value}});
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
  }
  EXPECT_THAT(std::string(QueryError(type, {{"name", "a"}, {"name", "b"}}).message()), HasSubstr("occurs 2 times"));
  EXPECT_THAT(std::string(QueryError(v1::UpdateChunk::descriptor(), {{"slices.keys", "a"}}).message()),
              HasSubstr("list of messages"));
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
