#include "service/auth/authorize.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/tasks.pb.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

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
  const auto* aggregation = v1::UpdateChunk::descriptor()->file()->service(0);
  const auto* tasks = v1::Task::descriptor()->file()->service(0);
  ASSERT_EQ(static_cast<size_t>(aggregation->method_count() + tasks->method_count()), kNumMethods);
  for (size_t m = 0; m < kNumMethods; ++m) {
    const auto method = static_cast<Method>(m);
    const auto* service = ServiceName(method) == tasks->full_name() ? tasks : aggregation;
    EXPECT_EQ(service->full_name(), ServiceName(method));
    EXPECT_NE(service->FindMethodByName(std::string(Name(method))), nullptr) << m;
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
