#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/utf8.h"
#include "host/spec/spec.h"

namespace sparseagg {
namespace {

std::string IdError(absl::string_view id) { return std::string(CheckId(id, "client_id").message()); }

TEST(IdsTest, CheckId_OtherTexts_AreRefusedWithTheirPlace) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "client_id has 0 bytes; 1 to 256 are allowed"},
      {std::string(257, 'x'), "client_id has 257 bytes; 1 to 256 are allowed"},
      {std::string("a\0", 2), "client_id has the control character U+0000 at byte 1"},
      {"\n", "client_id has the control character U+000A at byte 0"},
      {"a\x1b[2J", "client_id has the control character U+001B at byte 1"},
      {"a\x7f", "client_id has the control character U+007F at byte 1"},
      {"\xc3\xa4\xc2\x9b", "client_id has the control character U+009B at byte 2"},
      {"\xff", "client_id is not UTF-8 at byte 0"},
      {"ab\xc3", "client_id is not UTF-8 at byte 2"},
  };
  for (const auto& [id, error] : cases) EXPECT_EQ(IdError(id), error);
}

TEST(Utf8Test, Characters_AtTheEndsOfTheirRanges) {
  const std::pair<const char*, uint32_t> good[] = {{"\x7f", 0x7F},
                                                   {"\xc2\x80", 0x80},
                                                   {"\xdf\xbf", 0x7FF},
                                                   {"\xe0\xa0\x80", 0x800},
                                                   {"\xed\x9f\xbf", 0xD7FF},
                                                   {"\xee\x80\x80", 0xE000},
                                                   {"\xef\xbf\xbf", 0xFFFF},
                                                   {"\xf0\x90\x80\x80", 0x10000},
                                                   {"\xf4\x8f\xbf\xbf", 0x10FFFF}};
  for (const auto& [text, code_point] : good) {
    const absl::string_view bytes = text;
    EXPECT_EQ(FirstUtf8Character(absl::StrCat(bytes, "x")).num_bytes, bytes.size());
    EXPECT_EQ(FirstUtf8Character(bytes).code_point, code_point);
    EXPECT_FALSE(bytes.size() > 1 && IsUtf8(bytes.substr(0, bytes.size() - 1)));
  }
  // Continuation bytes alone, overlong forms, surrogates, beyond U+10FFFF, and a character that is cut by another.
  for (const char* bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xff", "\xe2\x82x", "\xc3\xc3\xa4"}) {
    EXPECT_EQ(FirstUtf8Character(bad).num_bytes, 0u) << bad;
    EXPECT_FALSE(IsUtf8(absl::StrCat("a", bad)));
  }
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_EQ(FirstUtf8Character("").num_bytes, 0u);
}

}  // namespace
}  // namespace sparseagg
