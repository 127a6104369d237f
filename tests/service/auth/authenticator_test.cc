// Who a caller is, and what each role may call.
#include "service/auth/authenticator.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "service/auth/authorize.h"
#include "service/auth/token_table.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/models.pb.h"
#include "sparseagg/v1/tasks.pb.h"
#include "tests/service/support/manual_clock.h"
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

class AuthenticatorTest : public ::testing::Test {
 protected:
  ~AuthenticatorTest() override { std::remove(path_.c_str()); }

  static std::string Line(absl::string_view token, absl::string_view rest) {
    return absl::StrCat(HexOf(token), " ", rest, "\n");
  }
  // Replaces the file at once, as an editor does.
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::rename((path_ + ".new").c_str(), path_.c_str());
  }
  absl::StatusOr<Identity> Call(const std::string& header) { return authenticator_.Authenticate({{header}, {}}); }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/authenticator_test.", getpid());
  ManualClock clock_;
  Authenticator authenticator_{&clock_};
};

TEST_F(AuthenticatorTest, NothingConfigured_EverybodyIsAdminOfTheDefaultTenant) {
  ASSERT_THAT(authenticator_.Configure({}), IsOk());
  EXPECT_FALSE(authenticator_.IsRequired());
  EXPECT_EQ(Call("Bearer whatever")->ToString(), "default/admin/");
  EXPECT_EQ(authenticator_.Authenticate({})->ToString(), "default/admin/");
}

TEST_F(AuthenticatorTest, Tokens_HeadersOtherThanOneBearerToken_AreUnauthenticated) {
  Write(Line("t", "client red c"));
  ASSERT_THAT(authenticator_.Configure({path_, false, {}}), IsOk());
  EXPECT_THAT(Call("Bearer t"), IsOk());
  EXPECT_THAT(Call("bearer t"), IsOk());  // RFC 7235: the scheme's case does not matter
  for (const char* header : {"", "t", "Basic t", "Bearer", "Bearer ", "Bearer x", "Bearer  t"}) {
    EXPECT_THAT(Call(header), HasCode(Code::kUnauthenticated)) << header;
  }
  EXPECT_THAT(authenticator_.Authenticate({}), Fails(Code::kUnauthenticated, HasSubstr("0 headers")));
  EXPECT_THAT(authenticator_.Authenticate({{"Bearer t", "Bearer t"}, {}}),
              Fails(Code::kUnauthenticated, HasSubstr("2 headers")));
  // A name without a verified certificate is worth nothing.
  EXPECT_THAT(authenticator_.Authenticate({{}, {"sparseagg://red/admin/x"}}), HasCode(Code::kUnauthenticated));
}

TEST_F(AuthenticatorTest, Reload_ChangedFile_RevokesAndAdds) {
  Write(Line("old", "client red c"));
  ASSERT_THAT(authenticator_.Configure({path_, false, {}}), IsOk());
  Write(Line("new", "observer red -"));
  EXPECT_THAT(Call("Bearer new"), HasCode(Code::kUnauthenticated));
  authenticator_.Reload();
  EXPECT_EQ(Call("Bearer new")->ToString(), "red/observer/");
  EXPECT_THAT(Call("Bearer old"), HasCode(Code::kUnauthenticated));
}

TEST_F(AuthenticatorTest, Reload_BadOrMissingFile_KeepsTheEarlierTokens) {
  Write(Line("old", "client red c"));
  ASSERT_THAT(authenticator_.Configure({path_, false, {}}), IsOk());
  Write("nonsense");
  authenticator_.Reload();
  EXPECT_THAT(Call("Bearer old"), IsOk());
  std::remove(path_.c_str());
  authenticator_.Reload();
  EXPECT_THAT(Call("Bearer old"), IsOk());
  Write("");
  authenticator_.Reload();
  EXPECT_THAT(Call("Bearer old"), HasCode(Code::kUnauthenticated));
}

TEST_F(AuthenticatorTest, Configure_BadFile_IsRefusedWithItsPlace) {
  EXPECT_THAT(authenticator_.Configure({path_, false, {}}),
              Fails(Code::kNotFound, AllOf(HasSubstr("--tokens-file"), HasSubstr(path_))));
  Write("\nnonsense\n");
  EXPECT_THAT(authenticator_.Configure({path_, false, {}}), Fails(Code::kInvalidArgument, HasSubstr("line 2")));
}

TEST_F(AuthenticatorTest, Certificate_OneNameOfOurs_IsTheIdentity) {
  Write(Line("t", "client red c"));
  ASSERT_THAT(authenticator_.Configure({path_, true, {}}), IsOk());
  EXPECT_EQ(authenticator_.Authenticate({{}, {"spiffe://x/y", "sparseagg://red/client/c"}})->ToString(),
            "red/client/c");
  EXPECT_EQ(authenticator_.Authenticate({{}, {"sparseagg://red/admin"}})->ToString(), "red/admin/");
  // A token goes first, and is not ignored when it is bad.
  EXPECT_EQ(authenticator_.Authenticate({{"Bearer t"}, {"sparseagg://blue/admin/x"}})->ToString(), "red/client/c");
  EXPECT_THAT(authenticator_.Authenticate({{"Bearer x"}, {"sparseagg://blue/admin/x"}}),
              HasCode(Code::kUnauthenticated));
  for (const char* name :
       {"sparseagg://red", "sparseagg://red/boss/x", "sparseagg://red/admin/x/y", "sparseagg:///admin/x",
        "sparseagg://red/client/", "sparseagg://red/client/..", "SPARSEAGG://red/admin/x", "https://red/admin/x"}) {
    EXPECT_THAT(authenticator_.Authenticate({{}, {name}}), HasCode(Code::kUnauthenticated)) << name;
  }
  EXPECT_THAT(authenticator_.Authenticate({{}, {"sparseagg://red/admin/x", "sparseagg://blue/admin/x"}}),
              Fails(Code::kUnauthenticated, HasSubstr("2 URI names")));
}

const absl::Time kTableNow = absl::FromUnixSeconds(1'800'000'000);

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

TEST(AuditLogTest, Denied_ManyInASecond_LeavesLinesOut) {
  ManualClock clock;
  Timer timer(&clock);
  AuditLog log(&clock);
  const auto denied = [&] { return log.Denied("GetRound", "", "ipv4:127.0.0.1:1", absl::UnauthenticatedError("no")); };
  for (int i = 0; i < LineLimit::kLinesPerSecond; ++i) EXPECT_TRUE(denied());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(denied());
  clock.Advance(absl::Seconds(1), timer);
  EXPECT_TRUE(denied());
}

// What each role may call, written down apart from the table that is tested: a letter for each of admin, coordinator,
// client and observer. y: allowed; o: for the caller's own client id; -: denied.
const std::map<std::string, std::string>& Expected() {
  static const auto& expected = *new std::map<std::string, std::string>{
      {"GetServerInfo", "yyyy"},      {"CreateRound", "yy--"},       {"GetRound", "yyyy"},
      {"ListRounds", "yyyy"},         {"WaitRound", "yyyy"},         {"CloseRound", "yy--"},
      {"CancelRound", "yy--"},        {"DeleteRound", "yy--"},       {"PutChunk", "yyo-"},
      {"CommitSubmission", "yyo-"},   {"GetUploadStatus", "yyo-"},   {"ListSubmissions", "yy-y"},
      {"WithdrawSubmission", "yyo-"}, {"SubmitUpdate", "yyo-"},      {"SubmitBatch", "yyo-"},
      {"GetResult", "yyyy"},          {"StreamResult", "yyyy"},      {"Aggregate", "yy--"},
      {"CreateTasks", "yy--"},        {"LeaseTask", "yyo-"},         {"ExtendLease", "yyo-"},
      {"CompleteTask", "yyo-"},       {"FailTask", "yyo-"},          {"GetTask", "yy-y"},
      {"ListTasks", "yy-y"},          {"CancelTasks", "yy--"},       {"SealRound", "yy--"},
      {"InspectRound", "yy--"},       {"ExportSubmissions", "yy--"}, {"ExportPartial", "yy--"},
      {"PutResultRange", "yy--"},     {"GetResultRange", "yyyy"},    {"GetCertificate", "yyyy"},
      {"GetReceipt", "yyo-"},         {"ExportRound", "yy--"},       {"CreateStream", "yy--"},
      {"GetStream", "yyyy"},          {"ListStreams", "yyyy"},       {"CutStream", "yy--"},
      {"DeleteStream", "yy--"},       {"WatchVersions", "yyyy"},     {"CreateBackup", "y---"},
      {"CreateModel", "yy--"},        {"GetModel", "yyyy"},          {"ListModels", "yyyy"},
      {"ReadRows", "yyyy"},           {"ApplyRound", "yy--"},        {"DeleteModel", "yy--"},
  };
  return expected;
}

TEST(AuthorizeTest, Matrix_RolesTimesMethodsTimesTenants) {
  int num_checked = 0;
  for (size_t m = 0; m < kNumMethods; ++m) {
    const auto method = static_cast<Method>(m);
    const auto expected = Expected().find(std::string(Name(method)));
    ASSERT_NE(expected, Expected().end()) << Name(method);
    for (const Role role : kAllRoles) {
      const Identity caller{"red", role, "site-1"};
      const char letter = expected->second[static_cast<size_t>(role)];
      for (const bool own_tenant : {true, false}) {
        for (const char* client_id : {"site-1", "site-2"}) {
          const bool allowed = (letter == 'y' || (letter == 'o' && client_id == std::string("site-1"))) &&
                               (own_tenant || role == Role::kAdmin);
          const absl::Status status = Authorize(caller, method, {own_tenant ? "red" : "blue", client_id, std::nullopt});
          EXPECT_EQ(status.code(), allowed ? Code::kOk : Code::kPermissionDenied)
              << Name(role) << " " << Name(method) << " " << own_tenant << " " << client_id << " " << status;
          ++num_checked;
        }
      }
      // Before the request is read.
      EXPECT_EQ(Authorize(caller, method).ok(), letter != '-') << Name(role) << " " << Name(method);
    }
  }
  EXPECT_EQ(num_checked, static_cast<int>(kNumMethods) * 4 * 2 * 2);
}

TEST(AuthorizeTest, Methods_AreThoseOfTheApi) {
  int num_methods = 0;
  std::map<std::string, const google::protobuf::ServiceDescriptor*> services;
  for (const auto* message : {v1::UpdateChunk::descriptor(), v1::Model::descriptor(), v1::Task::descriptor()}) {
    const auto* service = message->file()->service(0);
    num_methods += service->method_count();
    services[service->full_name()] = service;
  }
  ASSERT_EQ(num_methods, static_cast<int>(kNumMethods));
  for (size_t m = 0; m < kNumMethods; ++m) {
    const auto method = static_cast<Method>(m);
    const auto found = services.find(std::string(ServiceName(method)));
    ASSERT_NE(found, services.end()) << m;
    EXPECT_NE(found->second->FindMethodByName(std::string(Name(method))), nullptr) << m;
  }
}

TEST(AuthorizeTest, Owner_IsTheNameOfTheCredential) {
  for (const Role role : {Role::kAdmin, Role::kCoordinator}) {
    EXPECT_THAT(Authorize({"red", role, "me"}, Method::kCreateTasks, {"red", std::nullopt, "me"}), IsOk());
    EXPECT_THAT(Authorize({"red", role, ""}, Method::kCreateTasks, {"red", std::nullopt, "any"}), IsOk());
  }
  EXPECT_THAT(Authorize({"red", Role::kCoordinator, "me"}, Method::kCreateTasks, {"red", std::nullopt, "you"}),
              Fails(Code::kPermissionDenied, HasSubstr("of 'me', and the request names 'you' as the owner")));
  EXPECT_THAT(Authorize({"red", Role::kAdmin, "me"}, Method::kCreateTasks, {"red", std::nullopt, "you"}), IsOk());
}

TEST(AuthorizeTest, ClientWithoutName_MayUploadUnderAnyId) {
  EXPECT_THAT(Authorize({"red", Role::kClient, ""}, Method::kPutChunk, {std::nullopt, "any", std::nullopt}), IsOk());
}

TEST(AuthorizeTest, Errors_NameRoleMethodAndClient) {
  EXPECT_THAT(Authorize({"red", Role::kObserver, "x"}, Method::kPutChunk),
              Fails(Code::kPermissionDenied, HasSubstr("role 'observer' of this credential may not call PutChunk")));
  EXPECT_THAT(Authorize({"red", Role::kClient, "me"}, Method::kPutChunk, {std::nullopt, "you\n", std::nullopt}),
              Fails(Code::kPermissionDenied, HasSubstr("of client 'me', and the request of client 'you\\n'")));
}

TEST(AuthorizeTest, Documentation_HasTheTable) {
  std::ifstream file(SPARSEAGG_SECURITY_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(PermissionTable()));
}

}  // namespace
}  // namespace sparseagg::service
