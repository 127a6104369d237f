// sparseagg-server as a process: starting, settings, connections, logs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

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
