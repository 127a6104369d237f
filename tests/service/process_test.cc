// sparseagg-server as a process: starting, settings, connections, logs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "host/cpu/simd/kernels.h"
#include "service/net/listener.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/server_process.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::pair<std::string, uint16_t> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  return {address.substr(0, colon), static_cast<uint16_t>(std::stoi(address.substr(colon + 1)))};
}

v1::ServerInfo InfoOf(const ServerProcess& server) {
  Client client(server.address());
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_THAT(FromGrpc(client.stub().GetServerInfo(&context, {}, &info)), IsOk());
  return info;
}

// Returns: the address of the server.
sockaddr_in LoopbackOf(const ServerProcess& server) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(SplitAddress(server.address()).second);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return to;
}

// Returns: a connection, or -1.
int Connect(const sockaddr_in& to) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

TEST(ProcessTest, Start_PortZero_PrintsTheOneItFound) {
  ServerProcess server;
  EXPECT_THAT(server.address(), MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  EXPECT_EQ(InfoOf(server).engine(), "cpu");
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.Log();
}

TEST(ProcessTest, Settings_FlagEnvironmentAndFile_FlagGoesFirstThenEnvironment) {
  const std::string path = ::testing::TempDir() + "/process_test." + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << "max-uploads = 1\nmax-tensors = 1\nmax-row-width = 1\n";
  ServerProcess server({"--config", path, "--max-uploads", "3"},
                       {"SPARSEAGG_MAX_UPLOADS=2", "SPARSEAGG_MAX_TENSORS=2"});
  const v1::ServerLimits limits = InfoOf(server).limits();
  EXPECT_EQ(limits.max_uploads(), 3);
  EXPECT_EQ(limits.max_tensors(), 2);
  EXPECT_EQ(limits.max_row_width(), 1);
  unlink(path.c_str());
}

// A temporary file with a shared record lock, held until End or the destructor.
class OwnersFile {
 public:
  OwnersFile() : path_(::testing::TempDir() + "/owners." + std::to_string(getpid())) {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock whole = {};
    whole.l_type = F_RDLCK;
    EXPECT_EQ(fcntl(file_, F_SETLK, &whole), 0) << std::strerror(errno);
  }
  ~OwnersFile() {
    End();
    unlink(path_.c_str());
  }
  OwnersFile(const OwnersFile&) = delete;
  OwnersFile& operator=(const OwnersFile&) = delete;

  const std::string& path() const { return path_; }
  void End() {
    if (file_ >= 0) close(std::exchange(file_, -1));
  }

 private:
  std::string path_;
  int file_ = -1;
};

TEST(ProcessTest, OwnersFile_LastLockGone_StopsInOrder) {
  OwnersFile owners;
  ServerProcess server({"--owners-file", owners.path()});
  ASSERT_FALSE(server.address().empty()) << server.Log();
  EXPECT_EQ(InfoOf(server).engine(), "cpu");
  owners.End();
  EXPECT_EQ(server.Wait(), 0) << server.Log();
  EXPECT_THAT(server.Log(), AllOf(HasSubstr("no_owners path="), HasSubstr("stopped")));
}

TEST(ProcessTest, OwnersFile_OwnerEndsDuringAStop_DoesNotCutItShort) {
  OwnersFile owners;
  ServerProcess server({"--owners-file", owners.path(), "--shutdown-deadline", "60s"});
  Client client(server.address());
  ASSERT_THAT(client.Create(SumSpec(), "r"), IsOk());
  grpc::ClientContext context;
  v1::CommitSubmissionResponse submission;
  const auto upload = client.stub().SubmitUpdate(&context, &submission);
  ASSERT_TRUE(upload->Write(MakeChunk("rounds/r", "a", {1}, {1}, 0, false)));
  while (client.Get("rounds/r")->num_uploads() != 1) {
  }
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.AwaitLog("draining"));
  owners.End();
  ASSERT_TRUE(server.AwaitLog("no_owners"));
  ASSERT_TRUE(upload->Write(MakeChunk("rounds/r", "a", {2}, {1}, 1, true)));
  upload->WritesDone();
  EXPECT_THAT(FromGrpc(upload->Finish()), IsOk());
  EXPECT_EQ(server.Wait(), 0) << server.Log();
}

TEST(ProcessTest, OwnersFile_Missing_FailsAtStartAndNamesIt) {
  ServerProcess server({"--owners-file", "/nowhere/owners"});
  EXPECT_EQ(server.address(), "");
  EXPECT_EQ(server.Wait(), 1);
  EXPECT_THAT(server.Log(), HasSubstr("--owners-file /nowhere/owners: No such file or directory"));
}

TEST(ProcessTest, Backend_CudaWithoutIt_FailsAtStartAndSaysWhy) {
  if (ServerProcess probe({"--backend", "cuda"}); !probe.address().empty()) {
    GTEST_SKIP() << "this machine has a GPU that works";
  }
  for (const bool by_environment : {false, true}) {
    ServerProcess server(
        by_environment ? std::vector<std::string>{} : std::vector<std::string>{"--backend", "cuda"},
        by_environment ? std::vector<std::string>{"SPARSEAGG_BACKEND=cuda"} : std::vector<std::string>{});
    EXPECT_EQ(server.address(), "");
    EXPECT_EQ(server.Wait(), 1);
    EXPECT_THAT(server.Log(), HasSubstr("--backend cuda"));
  }
}

TEST(ProcessTest, Simd_UnknownTarget_FailsAtStartAndNamesTheTargets) {
  ServerProcess server({}, {"SPARSEAGG_SIMD=MMX"});
  EXPECT_EQ(server.address(), "");
  EXPECT_EQ(server.Wait(), 1);
  EXPECT_THAT(server.Log(), AllOf(HasSubstr("MMX"), HasSubstr(cpu::SimdTargets().back())));
}

TEST(ProcessTest, Simd_EveryTarget_IsInForce) {
  for (const std::string& target : cpu::SimdTargets()) {
    ServerProcess server({"--backend", "cpu", "--simd", target});
    EXPECT_TRUE(server.AwaitLog("s, " + target)) << "the engine's description names it";
  }
}

TEST(ProcessTest, Backend_Auto_LogsWhichAndWhy) {
  ServerProcess server;
  ASSERT_TRUE(server.AwaitLog("engine name="));
  EXPECT_THAT(server.Log(), ::testing::AnyOf(HasSubstr("no_gpu reason="), HasSubstr("name=cuda")));
}

TEST(ProcessTest, Start_AddressOffLoopback_NeedsInsecure) {
  ServerProcess refused({"--grpc-address", "0.0.0.0:0"});
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.Log(), HasSubstr("--insecure"));
}

TEST(ProcessTest, Start_PortTaken_Fails) {
  ServerProcess first;
  ServerProcess second({"--grpc-address", first.address()});
  EXPECT_EQ(second.address(), "");
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.Log(), HasSubstr("cannot listen on " + first.address()));
}

TEST(ProcessTest, Start_BadFlag_FailsWithUsage) {
  ServerProcess server({"--threads", "many"});
  EXPECT_NE(server.Wait(), 0);
  EXPECT_THAT(server.Log(), HasSubstr("--threads"));
}

TEST(ProcessTest, Start_UnixSocket_Serves) {
  const std::string path = ::testing::TempDir() + "/process_test." + std::to_string(getpid()) + ".sock";
  const std::string address = "unix:" + path;
  ServerProcess server({"--grpc-address", address});
  EXPECT_EQ(server.address(), address);
  Client client(address);
  EXPECT_THAT(client.Create(SumSpec(), "r"), IsOk());
  server.Signal(SIGKILL);
  server.Wait();
  unlink(path.c_str());
}

TEST(ProcessTest, Connections_FarTooManyThatDoNotCall_GiveWay) {
  ServerProcess server({"--max-connections", "4"});
  const auto [host, port] = SplitAddress(server.address());
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  std::vector<OwnedFd> connections;
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    connections.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int fd = connections.back().get();
    char byte = 0;  // gRPC sends first; a reset may come before connect() returns
    const bool served = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 && read(fd, &byte, 1) == 1;
    if (!served) ++refused;
  }
  EXPECT_EQ(refused, 0);
  Client client(server.address());
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_THAT(FromGrpc(client.stub().GetServerInfo(&context, {}, &info)), IsOk());
  EXPECT_EQ(info.limits().max_connections(), 4);
}

TEST(ProcessTest, Connection_SaysHowManyCallsItTakes) {
  ServerProcess server;
  const OwnedFd connection(Connect(LoopbackOf(server)));
  ASSERT_GE(connection.get(), 0);
  // The first frame of HTTP/2: 3 bytes of length, type 4 for settings, and of each 2 bytes of name, 4 of value.
  unsigned char head[9];
  ASSERT_EQ(recv(connection.get(), head, sizeof(head), MSG_WAITALL), ssize_t{sizeof(head)});
  ASSERT_EQ(head[3], 4);
  std::string settings(head[1] * 256 + head[2], '\0');
  ASSERT_EQ(recv(connection.get(), settings.data(), settings.size(), MSG_WAITALL),
            static_cast<ssize_t>(settings.size()));
  const std::string max_concurrent_streams("\x00\x03\x00\x00\x08\x00", 6);
  EXPECT_THAT(settings, HasSubstr(max_concurrent_streams));
}

TEST(ProcessTest, BrokenPipe_IsNoReasonToStop) {
  ServerProcess server;
  server.Signal(SIGPIPE);  // as a write to a log without a reader would
  EXPECT_EQ(InfoOf(server).engine(), "cpu");
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ProcessTest, Message_NotEvenUtf8_IsRefusedWithoutAWordOnStandardError) {
  ServerProcess server;
  Client client(server.address());
  grpc::ClientContext context;
  v1::CreateRoundRequest request;
  request.set_round_id("\xff");
  v1::Round round;
  EXPECT_FALSE(client.stub().CreateRound(&context, request, &round).ok());
  EXPECT_THAT(client.Create(SumSpec(), "r"), IsOk());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.Log(), Not(HasSubstr("UTF-8")));
}

TEST(ProcessTest, Connections_ResetAtOnce_LeaveNoWordOnStandardError) {
  ServerProcess server;
  const sockaddr_in to = LoopbackOf(server);
  server.Pause();  // the clients are gone when the server accepts them
  for (int i = 0; i < 50; ++i) {
    const int fd = Connect(to);
    ASSERT_GE(fd, 0);
    const linger reset{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
  }
  server.Signal(SIGCONT);
  EXPECT_THAT(Client(server.address()).Create(SumSpec(), "r"), IsOk());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.Log(), Not(HasSubstr("getpeername")));
}

TEST(ProcessTest, Log_Json_HasRoundsTimelineAndTraceparent) {
  ServerProcess server({"--log-format", "json", "--threads", "64"});
  Client client(server.address());
  {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    v1::CreateRoundRequest request;
    request.set_round_id("logged");
    *request.mutable_spec() = SumSpec();
    v1::Round round;
    ASSERT_THAT(FromGrpc(client.stub().CreateRound(&context, request, &round)), IsOk());
  }
  ASSERT_THAT(client.SubmitUnary({MakeChunk("rounds/logged", "a", {1}, {1})}), IsOk());
  ASSERT_THAT(client.Finish("rounds/logged"), IsOk());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.Log(),
              AllOf(HasSubstr("\"event\":\"round_created\",\"round\":\"logged\""), HasSubstr("\"state\":\"DONE\""),
                    HasSubstr("\"finish_ms\":"), HasSubstr("\"longest\":"),
                    HasSubstr("\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-")));
  // Nothing else writes to standard error, not even oneTBB about fewer cores than threads.
  for (const absl::string_view line : absl::StrSplit(server.Log(), '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StartsWith(line, "{")) << line;
  }
}

}  // namespace
}  // namespace sparseagg::service
