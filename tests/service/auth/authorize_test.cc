#include "service/auth/authorize.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "sparseagg/v1/aggregation.pb.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// What each role may call, written down apart from the table that is tested: a letter for each of admin, coordinator,
// client and observer. y: allowed; o: for the caller's own client id; -: denied.
const std::map<std::string, std::string>& Expected() {
  static const auto& expected = *new std::map<std::string, std::string>{
      {"GetServerInfo", "yyyy"},      {"CreateRound", "yy--"},     {"GetRound", "yyyy"},
      {"ListRounds", "yyyy"},         {"WaitRound", "yyyy"},       {"CloseRound", "yy--"},
      {"CancelRound", "yy--"},        {"DeleteRound", "yy--"},     {"PutChunk", "yyo-"},
      {"CommitSubmission", "yyo-"},   {"GetUploadStatus", "yyo-"}, {"ListSubmissions", "yy-y"},
      {"WithdrawSubmission", "yyo-"}, {"SubmitUpdate", "yyo-"},    {"GetResult", "yyyy"},
      {"StreamResult", "yyyy"},       {"Aggregate", "yy--"},
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
          const absl::Status status = Authorize(caller, method, {own_tenant ? "red" : "blue", client_id});
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
  const auto* service = v1::UpdateChunk::descriptor()->file()->service(0);
  ASSERT_EQ(static_cast<size_t>(service->method_count()), kNumMethods);
  for (size_t m = 0; m < kNumMethods; ++m) {
    EXPECT_NE(service->FindMethodByName(std::string(Name(static_cast<Method>(m)))), nullptr) << m;
  }
}

TEST(AuthorizeTest, ClientWithoutName_MayUploadUnderAnyId) {
  EXPECT_THAT(Authorize({"red", Role::kClient, ""}, Method::kPutChunk, {std::nullopt, "any"}), IsOk());
}

TEST(AuthorizeTest, Errors_NameRoleMethodAndClient) {
  EXPECT_THAT(Authorize({"red", Role::kObserver, "x"}, Method::kPutChunk),
              Fails(Code::kPermissionDenied, HasSubstr("role 'observer' of this credential may not call PutChunk")));
  EXPECT_THAT(Authorize({"red", Role::kClient, "me"}, Method::kPutChunk, {std::nullopt, "you\n"}),
              Fails(Code::kPermissionDenied, HasSubstr("of client 'me', and the request of client 'you\\n'")));
}

TEST(AuthorizeTest, Documentation_HasTheTable) {
  std::ifstream file(SPARSEAGG_SECURITY_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(PermissionTable()));
}

}  // namespace
}  // namespace sparseagg::service
