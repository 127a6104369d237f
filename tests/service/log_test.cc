#include "service/log.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

namespace sparseagg::service {
namespace {

TEST(LogTest, FormatLogLine_Text_IsKeyValue) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "round_ended",
                          {{"round", "r1"}, {"tuples", uint64_t{5}}, {"add_ms", absl::Microseconds(1500)}}),
            "round_ended round=r1 tuples=5 add_ms=1.500");
}

TEST(LogTest, FormatLogLine_TextWithOddValues_QuotesThem) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "e", {{"a", ""}, {"b", "x y"}, {"c", "k=v"}, {"d", "say \"no\"\n"}}),
            R"(e a="" b="x y" c="k=v" d="say \"no\"\u000a")");
}

TEST(LogTest, FormatLogLine_Json_IsJsonWhateverTheIdsHold) {
  std::string everything;
  for (int c = 0; c < 128; ++c) everything += static_cast<char>(c);
  const std::string line =
      "{" + FormatLogLine(LogFormat::kJson, "e", {{"text", everything}, {"number", -3}, {"time", absl::Seconds(2)}}) +
      "}";
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &parsed).ok()) << line;
  EXPECT_EQ(parsed.fields().at("event").string_value(), "e");
  EXPECT_EQ(parsed.fields().at("text").string_value(), everything);
  EXPECT_EQ(parsed.fields().at("number").number_value(), -3);
  EXPECT_EQ(parsed.fields().at("time").number_value(), 2000);
}

TEST(LogTest, FormatLogLine_BytesThatAreNoUtf8_AreEscaped) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "e", {{"a", "\xff"}}), R"(e a="\u00ff")");
}

}  // namespace
}  // namespace sparseagg::service
