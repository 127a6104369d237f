// Who may call what, over real connections.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/auth/authorize.h"
#include "tests/service/support/authenticated_channel.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class AuthApiTest : public ServerFixture {
 protected:
  AuthApiTest() { options_.tokens_file = absl::StrCat(::testing::TempDir(), "/auth_api_test.", getpid()); }
  ~AuthApiTest() override { std::remove(options_.tokens_file.c_str()); }

  void WriteTokens(const std::string& lines) { ReplaceFile(options_.tokens_file, lines); }
  Client As(const std::string& token) { return Client(ConnectWith(server().grpc_address(), Bearer(token))); }
  // As WriteTokens, with a token for each role of two tenants, named after both: "red-client". Its client id is "me".
  void WriteAllRoles() {
    std::string lines;
    for (const char* tenant : {"red", "blue"}) {
      for (const Role role : kAllRoles) {
        lines += TokenLine(absl::StrCat(tenant, "-", Name(role)), absl::StrCat(Name(role), " ", tenant, " me"));
      }
    }
    WriteTokens(lines);
  }
};

TEST_F(AuthApiTest, Matrix_EveryMethodForEveryRole_IsDeniedAsTheTableSays) {
  WriteAllRoles();
  for (size_t m = 0; m < kNumMethods; ++m) {
    const auto method = static_cast<Method>(m);
    const std::string name(Name(method));
    EXPECT_THAT(CallMethod(ConnectWith(server().grpc_address(), {}), method, ""), HasCode(Code::kUnauthenticated))
        << name;
    EXPECT_THAT(CallMethod(ConnectWith(server().grpc_address(), Bearer("x")), method, ""),
                HasCode(Code::kUnauthenticated))
        << name;
    for (const Role role : kAllRoles) {
      const auto channel = ConnectWith(server().grpc_address(), Bearer(absl::StrCat("red-", Name(role))));
      // The empty message is malformed for most methods, but that comes later.
      const bool allowed = Authorize({"red", role, "me"}, method).ok();
      // A LeaseTaskRequest with a timeout of 0, else it would wait for a task.
      const std::string message = method == Method::kLeaseTask ? std::string("\x2a\x00", 2) : "";
      const absl::Status status = CallMethod(channel, method, message);
      EXPECT_EQ(absl::IsPermissionDenied(status), !allowed) << name << " " << Name(role) << " " << status;
      EXPECT_FALSE(absl::IsUnauthenticated(status)) << name << " " << Name(role) << " " << status;
    }
  }
}

TEST_F(AuthApiTest, Tenants_SameIds_AreDifferentRounds) {
  WriteAllRoles();
  Client red = As("red-coordinator");
  Client blue = As("blue-coordinator");
  ASSERT_THAT(red.Create(SumSpec(10), "r"), IsOk());
  // As for a round that nobody has: the answers do not tell whether there is one.
  const absl::Status missing = blue.Get("rounds/none").status();
  for (const absl::Status& status :
       {blue.Get("rounds/r").status(), blue.Close("rounds/r").status(), blue.Cancel("rounds/r").status(),
        blue.Delete("rounds/r"), blue.Wait("rounds/r", absl::ZeroDuration()).status(),
        blue.SubmitUnary({MakeChunk("rounds/r", "a", {1}, {1})}).status(),
        blue.SubmitStream({MakeChunk("rounds/r", "a", {1}, {1})}).status()}) {
    EXPECT_THAT(status, Fails(Code::kNotFound, "no round 'r'"));
  }
  EXPECT_THAT(missing, Fails(Code::kNotFound, "no round 'none'"));
  ASSERT_THAT(blue.Create(SumSpec(20), "r"), IsOk());  // no ALREADY_EXISTS
  ASSERT_THAT(blue.Create(SumSpec(20), "b"), IsOk());
  EXPECT_EQ(red.Get("rounds/r")->spec().tensors(0).num_rows(), 10);
  EXPECT_EQ(blue.Get("rounds/r")->spec().tensors(0).num_rows(), 20);

  grpc::ClientContext context;
  v1::ListRoundsResponse list;
  ASSERT_THAT(FromGrpc(red.stub().ListRounds(&context, {}, &list)), IsOk());
  ASSERT_EQ(list.rounds_size(), 1);
  EXPECT_EQ(list.rounds(0).spec().tensors(0).num_rows(), 10);
  ASSERT_THAT(blue.Delete("rounds/r"), IsOk());
  EXPECT_THAT(red.Get("rounds/r"), IsOk());
}

TEST_F(AuthApiTest, Refusals_OfOtherClients_AreNotShownToAClient) {
  WriteTokens(absl::StrCat(TokenLine("coordinator", "coordinator red boss"), TokenLine("a", "client red a"),
                           TokenLine("b", "client red b")));
  ASSERT_THAT(As("coordinator").Create(SumSpec(10), "r"), IsOk());
  for (const char* id : {"a", "b"}) {
    EXPECT_THAT(As(id).SubmitUnary({MakeChunk("rounds/r", id, {10}, {1})}), HasCode(Code::kInvalidArgument));
  }
  const auto shown_to = [&](const std::string& token) {
    std::vector<std::string> clients;
    const auto round = As(token).Get("rounds/r");
    EXPECT_THAT(round, IsOk());
    if (!round.ok()) return clients;
    for (const v1::Refusal& refusal : round->recent_refusals()) clients.push_back(refusal.client_id());
    return clients;
  };
  EXPECT_THAT(shown_to("coordinator"), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(shown_to("a"), ::testing::ElementsAre("a"));
  EXPECT_THAT(shown_to("b"), ::testing::ElementsAre("b"));
}

TEST_F(AuthApiTest, TenantHeader_OfAnAdmin_ActsThere_OfOthersIsDenied) {
  WriteAllRoles();
  ASSERT_THAT(As("red-coordinator").Create(SumSpec(), "r"), IsOk());
  const auto with_tenant = [&](const std::string& token, const std::string& tenant) {
    auto headers = Bearer(token);
    headers["sparseagg-tenant"] = tenant;
    return Client(ConnectWith(server().grpc_address(), headers)).Get("rounds/r").status();
  };
  EXPECT_THAT(with_tenant("blue-admin", "red"), IsOk());
  EXPECT_THAT(As("blue-admin").Get("rounds/r"), HasCode(Code::kNotFound));
  EXPECT_THAT(with_tenant("red-coordinator", "red"), IsOk());
  EXPECT_THAT(with_tenant("blue-coordinator", "red"), Fails(Code::kPermissionDenied, HasSubstr("another tenant")));
  EXPECT_THAT(with_tenant("blue-admin", "a/b"), Fails(Code::kInvalidArgument, HasSubstr("sparseagg-tenant")));
  EXPECT_THAT(with_tenant("blue-admin", ""), Fails(Code::kInvalidArgument, HasSubstr("sparseagg-tenant")));
  grpc::ClientContext twice;
  twice.AddMetadata("sparseagg-tenant", "red");
  twice.AddMetadata("sparseagg-tenant", "blue");
  v1::GetRoundRequest request;
  request.set_name("rounds/r");
  v1::Round round;
  EXPECT_THAT(FromGrpc(As("blue-admin").stub().GetRound(&twice, request, &round)),
              Fails(Code::kInvalidArgument, HasSubstr("2 headers 'sparseagg-tenant'")));
}

TEST_F(AuthApiTest, Transfers_OfOneTenant_LeaveThoseOfOthers) {
  options_.limits.max_transfers_per_tenant = 1;
  WriteAllRoles();
  Client red = As("red-coordinator");
  Client blue = As("blue-coordinator");
  ASSERT_THAT(red.Create(SumSpec(), "r"), IsOk());
  ASSERT_THAT(blue.Create(SumSpec(), "r"), IsOk());
  const v1::UpdateChunk chunk = MakeChunk("rounds/r", "a", {1}, {1});
  {
    // A stream whose server has taken its first chunk.
    grpc::ClientContext context;
    v1::CommitSubmissionResponse submission;
    const auto stream = red.stub().SubmitUpdate(&context, &submission);
    v1::UpdateChunk first = chunk;
    first.set_last(false);
    ASSERT_TRUE(stream->Write(first));
    while (red.Get("rounds/r")->num_uploads() == 0) std::this_thread::yield();
    EXPECT_THAT(red.Put(MakeChunk("rounds/r", "b", {1}, {1})),
                Fails(Code::kResourceExhausted, HasSubstr("max_transfers_per_tenant 1 calls")));
    EXPECT_THAT(red.Get("rounds/r"), IsOk());  // no transfer
    EXPECT_THAT(blue.Put(chunk), IsOk());
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The permit is released when the server has seen the end of the call.
  absl::Status put;
  do {
    put = red.Put(chunk).status();
  } while (absl::IsResourceExhausted(put));
  EXPECT_THAT(put, IsOk());
}

TEST_F(AuthApiTest, SideServices_OnlyHealthIsThere) {
  WriteAllRoles();
  const auto channel = ConnectWith(server().grpc_address(), {});
  EXPECT_THAT(CallPath(channel, "/grpc.health.v1.Health/Check", ""), IsOk());
  for (const char* path :
       {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/grpc.channelz.v1.Channelz/GetServers"}) {
    EXPECT_THAT(CallPath(channel, path, ""), HasCode(Code::kUnimplemented)) << path;
  }
}

TEST_F(AuthApiTest, SideServices_WithoutCredentials_AreServed) {
  options_.tokens_file.clear();
  const auto channel = ConnectWith(server().grpc_address(), Bearer("which nobody looks at"));
  EXPECT_THAT(CallPath(channel, "/grpc.channelz.v1.Channelz/GetServers", ""), IsOk());
}

}  // namespace
}  // namespace sparseagg::service
