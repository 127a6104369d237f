#include "service/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/match.h"

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

TEST(LogTest, Log_NobodyReads_DropsTheOldestAndCountsThem) {
  constexpr int kLines = 20'000;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_TRUE(FlushLog(absl::InfiniteDuration()));
  const int standard_error = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  const uint64_t before = DroppedLogLines();
  for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "line", {{"number", i}});
  EXPECT_FALSE(FlushLog(absl::ZeroDuration()));
  const uint64_t dropped = DroppedLogLines() - before;
  EXPECT_GT(dropped, 0);

  std::string read_back;
  std::thread reader([&] {
    char bytes[4096];
    for (ssize_t size; (size = read(ends[0], bytes, sizeof(bytes))) > 0;) read_back.append(bytes, size);
  });
  EXPECT_TRUE(FlushLog(absl::InfiniteDuration()));
  dup2(standard_error, STDERR_FILENO);  // the last end of the pipe that is written to
  reader.join();
  close(standard_error);
  close(ends[0]);
  const auto lines = std::count(read_back.begin(), read_back.end(), '\n');
  EXPECT_NEAR(static_cast<double>(lines + dropped), kLines, 1);  // the first flush may be one of them
  EXPECT_TRUE(absl::StrContains(read_back, "line number=19999\n"));
}

}  // namespace
}  // namespace sparseagg::service
