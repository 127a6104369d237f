#include "service/auth/token_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

std::string HexOf(absl::string_view token) {
  const TokenHash hash = HashToken(token);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), hash.size()});
}

const absl::Time kTableNow = absl::FromUnixSeconds(1'800'000'000);

TEST(TokenTableTest, HashToken_IsSha256) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokenTableTest, Find_Token_IsItsIdentity) {
  const auto table = TokenTable::Parse(absl::StrCat("# comment\n\n", HexOf("one"), " client red site-1\n",
                                                    absl::AsciiStrToUpper(HexOf("two")), "\tobserver  blue -\r\n"));
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->size(), 2);
  EXPECT_EQ(table->Find("one", kTableNow)->ToString(), "red/client/site-1");
  EXPECT_EQ(table->Find("two", kTableNow)->ToString(), "blue/observer/");
  for (const char* unknown : {"", "three", "one ", "On"}) {
    EXPECT_THAT(table->Find(unknown, kTableNow), HasCode(Code::kUnauthenticated)) << unknown;
  }
}

TEST(TokenTableTest, Find_HashInPlaceOfTheToken_IsUnknown) {
  const auto table = TokenTable::Parse(absl::StrCat(HexOf("one"), " client red site-1"));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(table->Find(HexOf("one"), kTableNow), HasCode(Code::kUnauthenticated));
}

TEST(TokenTableTest, Find_Expiry_CountsFromItsSecond) {
  const auto table = TokenTable::Parse(absl::StrCat(
      HexOf("one"), " client red - ", absl::FormatTime(absl::RFC3339_sec, kTableNow, absl::UTCTimeZone())));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(table->Find("one", kTableNow - absl::Seconds(1)), IsOk());
  EXPECT_THAT(table->Find("one", kTableNow),
              Fails(Code::kUnauthenticated, HasSubstr("expired at 2027-01-15T08:00:00")));
}

TEST(TokenTableTest, Parse_MalformedLine_IsNamedWithoutItsSecrets) {
  const std::string good = absl::StrCat(HexOf("one"), " client red -\n");
  const std::string hash = HexOf("two");
  const std::pair<std::string, std::string> lines[] = {
      {hash, "1 words"},
      {absl::StrCat(hash, " client red - 2027-01-31T00:00:00Z x"), "6 words"},
      {"my-secret-token client red -", "not a SHA-256"},
      {absl::StrCat(hash.substr(1), "g client red -"), "not a SHA-256"},
      {absl::StrCat(hash, " boss red -"), "role 'boss'"},
      {absl::StrCat(hash, " client re/d -"), "tenant 're/d'"},
      {absl::StrCat(hash, " client red a*b"), "name 'a*b'"},
      {absl::StrCat(hash, " client red - tomorrow"), "'tomorrow' is not a time"},
      {absl::StrCat(HexOf("one"), " observer red -"), "the hash of an earlier line"},
  };
  for (const auto& [line, problem] : lines) {
    EXPECT_THAT(TokenTable::Parse(good + line),
                Fails(Code::kInvalidArgument,
                      AllOf(HasSubstr("line 2: "), HasSubstr(problem), Not(HasSubstr("my-secret-token")))))
        << line;
  }
}

}  // namespace
}  // namespace sparseagg::service
