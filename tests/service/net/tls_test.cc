// TLS and client certificates, over real connections.
#include "service/net/tls.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "tests/service/support/authenticated_channel.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

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
