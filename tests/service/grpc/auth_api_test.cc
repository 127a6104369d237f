// Who may call what, over real connections: tokens, TLS and client certificates.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/auth/authorize.h"
#include "service/net/tls.h"
#include "tests/service/support/authenticated_channel.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
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
  request.set_round("rounds/r");
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

// ---- TLS and client certificates, over real connections.

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TlsTest : public ServerFixture {
 protected:
  TlsTest() {
    // Two authorities that know nothing of each other.
    EXPECT_THAT(MakeDevCertificates(ours_, "127.0.0.1:0"), IsOk());
    EXPECT_THAT(MakeDevCertificates(theirs_, "127.0.0.1:0"), IsOk());
    options_.tls = {ours_ + "/server.pem", ours_ + "/server.key", ""};
  }
  ~TlsTest() override { std::filesystem::remove_all(root_); }

  // A connection that trusts `folder`'s authority, with the certificate of `role` from `own` (empty: with none).
  std::shared_ptr<grpc::Channel> Connect(const std::string& folder, const std::string& own = "",
                                         const std::string& role = "admin",
                                         const std::map<std::string, std::string>& headers = {}) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(folder + "/ca.pem");
    if (!own.empty()) {
      options.pem_private_key = Read(absl::StrCat(own, "/", role, ".key"));
      options.pem_cert_chain = Read(absl::StrCat(own, "/", role, ".pem"));
    }
    return ConnectWith(server().grpc_address(), headers, grpc::SslCredentials(options));
  }
  static absl::Status Info(const std::shared_ptr<grpc::Channel>& channel) {
    return CallMethod(channel, Method::kGetServerInfo, "");
  }
  absl::Status StartError() { return Server::Start(options_, std::make_unique<HookedEngine>(&hooks_)).status(); }
  // Copies the server's certificate or key of `theirs_` over ours.
  void TakeTheirs(const std::string& file) { ReplaceFile(ours_ + "/" + file, Read(theirs_ + "/" + file)); }
  // Moves the clock, which makes the server look at its files, until `connected` is true.
  template <typename Condition>
  void LookUntil(Condition condition) {
    do {
      Advance(absl::Seconds(2));
    } while (!condition());
  }

  const std::string root_ = [] {
    std::string path = ::testing::TempDir() + "/tls_test.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no directory for the test");
    return path;
  }();
  const std::string ours_ = root_ + "/ours";
  const std::string theirs_ = root_ + "/theirs";
};

TEST_F(TlsTest, Server_OfAnUnknownAuthorityOrCalledWithoutTls_IsUnavailable) {
  EXPECT_THAT(Info(Connect(theirs_)), HasCode(Code::kUnavailable));
  EXPECT_THAT(Info(ConnectWith(server().grpc_address(), {})), HasCode(Code::kUnavailable));
  EXPECT_THAT(Info(Connect(ours_)), IsOk());
}

TEST_F(TlsTest, ClientCertificate_IsNeededAndGivesTheIdentity) {
  options_.tls.client_ca = ours_ + "/ca.pem";
  EXPECT_THAT(Info(Connect(ours_)), HasCode(Code::kUnavailable));
  EXPECT_THAT(Info(Connect(ours_, theirs_)), HasCode(Code::kUnavailable));
  Client coordinator(Connect(ours_, ours_, "coordinator"));
  const auto round = coordinator.Create(SumSpec(), "r");
  ASSERT_THAT(round, IsOk());
  Client client(Connect(ours_, ours_, "client"));
  EXPECT_THAT(client.Create(SumSpec(), "s"), Fails(Code::kPermissionDenied, HasSubstr("role 'client'")));
  EXPECT_THAT(client.Put(MakeChunk(round->name(), "you", {1}, {1})), HasCode(Code::kPermissionDenied));
  EXPECT_THAT(client.Put(MakeChunk(round->name(), "dev", {1}, {1})), IsOk());
  Client observer(Connect(ours_, ours_, "observer"));
  EXPECT_THAT(observer.Put(MakeChunk(round->name(), "dev", {1}, {1})), HasCode(Code::kPermissionDenied));
  EXPECT_THAT(observer.Get(round->name()), IsOk());
}

TEST_F(TlsTest, ChangedFiles_AreTakenByNewConnectionsWhenTheyMatch) {
  manual_time_ = true;
  const auto before = Connect(ours_);
  ASSERT_THAT(Info(before), IsOk());

  // Half way: the certificate does not match the key. The server must look and go on with the earlier pair.
  TakeTheirs("server.pem");
  for (int looks = 0; looks < 3; ++looks) {
    Advance(absl::Seconds(2));
    clock_.AwaitDue(server().context().timer);
    EXPECT_THAT(Info(Connect(ours_)), IsOk());
  }
  TakeTheirs("server.key");
  LookUntil([&] { return Info(Connect(theirs_)).ok(); });
  EXPECT_THAT(Info(Connect(ours_)), HasCode(Code::kUnavailable));
  EXPECT_THAT(Info(before), IsOk());  // a connection keeps what it began with
}

TEST_F(TlsTest, ChangedClientAuthority_IsTaken) {
  manual_time_ = true;
  options_.tls.client_ca = root_ + "/clients.pem";
  ReplaceFile(options_.tls.client_ca, Read(ours_ + "/ca.pem"));
  EXPECT_THAT(Info(Connect(ours_, theirs_)), HasCode(Code::kUnavailable));
  ReplaceFile(options_.tls.client_ca, Read(theirs_ + "/ca.pem"));
  LookUntil([&] { return Info(Connect(ours_, theirs_)).ok(); });
  EXPECT_THAT(Info(Connect(ours_, ours_)), HasCode(Code::kUnavailable));
}

TEST_F(TlsTest, Start_BadFiles_AreRefusedWithFlagAndPath) {
  const TlsOptions good = options_.tls;
  options_.tls.key = theirs_ + "/server.key";
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, AllOf(HasSubstr("--tls-key"), HasSubstr("not the key of"))));
  options_.tls.key.clear();
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("--tls-key is missing")));
  options_.tls.key = good.certificate;
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("no private key")));
  options_.tls = {good.key, good.key, ""};
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("no certificate in PEM")));
  options_.tls = {root_ + "/missing", good.key, ""};
  EXPECT_THAT(StartError(), Fails(Code::kNotFound, AllOf(HasSubstr("--tls-certificate"), HasSubstr("/missing"))));
  options_.tls = {good.certificate, good.key, good.key};
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("--tls-client-ca")));
  options_.tls = {"", "", ours_ + "/ca.pem"};
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("--tls-certificate is missing")));
}

TEST_F(TlsTest, Start_OffLoopback_NeedsTlsAndCredentials) {
  options_.grpc_address = "0.0.0.0:0";
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("no authentication")));
  options_.tokens_file = root_ + "/tokens";
  ReplaceFile(options_.tokens_file, TokenLine("t", "observer red -"));
  EXPECT_THAT(StartError(), IsOk());
  options_.tls = {};
  EXPECT_THAT(StartError(), Fails(Code::kInvalidArgument, HasSubstr("no TLS")));
  options_.insecure = true;
  EXPECT_THAT(StartError(), IsOk());
  options_.insecure = false;
  options_.tokens_file.clear();
  options_.tls = {ours_ + "/server.pem", ours_ + "/server.key", ours_ + "/ca.pem"};
  EXPECT_THAT(StartError(), IsOk());
}

TEST_F(TlsTest, MakeDevCertificates_ASecondTime_KeepsWhatIsThere) {
  const std::string ca = Read(ours_ + "/ca.pem");
  EXPECT_THAT(MakeDevCertificates(ours_, "127.0.0.1:0"), IsOk());
  EXPECT_EQ(Read(ours_ + "/ca.pem"), ca);
  struct stat key {};
  ASSERT_EQ(stat((ours_ + "/server.key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  EXPECT_THAT(MakeDevCertificates(root_ + "/no/such", "127.0.0.1:0"), HasCode(Code::kNotFound));
}

}  // namespace
}  // namespace sparseagg::service
