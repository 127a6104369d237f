// sparseagg-server as a process: starting, settings, connections, logs, and how it stops on a signal.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "host/cpu/simd/kernels.h"
#include "service/net/listener.h"
#include "tests/service/support/raw_client.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/server_process.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Code = absl::StatusCode;

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

// ---- The log of sparseagg-server as a process: its content, and a server whose log nobody reads.

// A pipe without a reader, with room for a few dozen lines.
struct StalledPipe {
  StalledPipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_GE(fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
    read = OwnedFd(ends[0]);
    write = OwnedFd(ends[1]);
  }
  OwnedFd read{-1};
  OwnedFd write{-1};
};

void MakeManyLines(Client& client) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_THAT(client.Create(SumSpec(), "r"), IsOk());
    ASSERT_THAT(client.Delete("rounds/r"), IsOk());
  }
}

TEST(ProcessLogTest, NobodyReads_HoldsUpNeitherCallsNorTheStop) {
  const StalledPipe log;
  ServerProcess server({}, {}, log.write.get());
  Client client(server.address());
  MakeManyLines(client);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ProcessLogTest, NobodyReads_ASecondSignalStillEndsTheServerAtOnce) {
  const StalledPipe log;
  ServerProcess server({"--drain-delay", "600s"}, {}, log.write.get());
  Client client(server.address());
  MakeManyLines(client);
  server.Signal(SIGTERM);
  server.Signal(SIGINT);  // either of the two may arrive second
  EXPECT_THAT(server.Wait(), AnyOf(128 + SIGTERM, 128 + SIGINT));
}

TEST(ProcessLogTest, Call_IsLoggedOnceItIsKnownToBeGood) {
  ServerProcess server;
  Client client(server.address());
  EXPECT_THAT(client.Delete("rounds/none"), HasCode(Code::kNotFound));
  EXPECT_THAT(client.Create({}, "bad"), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(client.Aggregate({}, {}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(client.Create(SumSpec(), "good"), IsOk());
  EXPECT_THAT(client.Create(SumSpec(7), "good"), HasCode(Code::kAlreadyExists));
  EXPECT_THAT(client.Cancel("rounds/good", std::string(2000, 'x')), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(client.Finish("rounds/good"), IsOk());
  EXPECT_THAT(client.Cancel("rounds/good"), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(client.Aggregate(SumSpec(), {}), IsOk());
  EXPECT_THAT(client.Delete("rounds/good"), IsOk());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  const std::string log = server.Log();
  EXPECT_THAT(log,
              AllOf(HasSubstr("method=CreateRound round=good"), HasSubstr("method=Aggregate"),
                    HasSubstr("method=CloseRound round=rounds/good"), HasSubstr("method=DeleteRound round=rounds/good"),
                    Not(HasSubstr("rounds/none")), Not(HasSubstr("bad")), Not(HasSubstr("method=CancelRound"))));
  EXPECT_EQ(log.find("method=CreateRound"), log.rfind("method=CreateRound"));
}

TEST(ProcessLogTest, FewFiles_FewerConnectionsThanAskedFor_IsLogged) {
  ServerProcess server({"--max-connections", "1000000000", "--memory-limit", "0"});
  Client client(server.address());
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_THAT(FromGrpc(client.stub().GetServerInfo(&context, {}, &info)), IsOk());
  EXPECT_TRUE(server.AwaitLog(
      absl::StrCat("few_files max_connections=1000000000 connections=", info.limits().max_connections(), "\n")));
}

TEST(ProcessLogTest, MuchMemoryPerTenant_AllThatRoundsHave_IsLogged) {
  ServerProcess server({"--memory-limit", "256MiB", "--max-memory-per-tenant", "256MiB"});
  EXPECT_TRUE(server.AwaitLog("much_memory_per_tenant max_memory_per_tenant=268435456 memory_of_rounds="));
}

TEST(ProcessLogTest, RefusedSubmission_IsLoggedWithClientAndReason) {
  ServerProcess server;
  Client client(server.address());
  ASSERT_THAT(client.Create(SumSpec(10), "r"), IsOk());
  EXPECT_THAT(client.SubmitUnary({MakeChunk("rounds/r", "a b", {10}, {1})}), HasCode(Code::kInvalidArgument));
  ASSERT_TRUE(server.AwaitLog("submission_refused"));
  EXPECT_THAT(server.Log(), HasSubstr("submission_refused round=r client=\"a b\" code=INVALID_ARGUMENT reason=\""));
}

TEST(ProcessLogTest, Traceparent_IsCutToItsLength) {
  ServerProcess server;
  Client client(server.address());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", std::string(7000, 'z'));
  v1::CreateRoundRequest request;
  request.set_round_id("r");
  *request.mutable_spec() = SumSpec();
  v1::Round round;
  ASSERT_THAT(FromGrpc(client.stub().CreateRound(&context, request, &round)), IsOk());
  EXPECT_TRUE(server.AwaitLog("traceparent=" + std::string(55, 'z') + "\n"));
}

// ---- How sparseagg-server stops on a signal.

// An upload whose first chunk has arrived at the server.
struct HalfUpload {
  explicit HalfUpload(const ServerProcess& server) : client(server.address()) {
    EXPECT_THAT(client.Create(SumSpec(), "r"), IsOk());
    writer = client.stub().SubmitUpdate(&context, &submission);
    EXPECT_TRUE(writer->Write(MakeChunk("rounds/r", "a", {1}, {1}, 0, false)));
    while (client.Get("rounds/r")->num_uploads() != 1) {
    }
  }

  Client client;
  grpc::ClientContext context;
  v1::CommitSubmissionResponse submission;
  std::unique_ptr<grpc::ClientWriter<v1::UpdateChunk>> writer;
};

TEST(ProcessStopTest, Sighup_StopsLikeSigterm) {
  ServerProcess server({"--shutdown-deadline", "60s"});
  server.Signal(SIGHUP);
  ASSERT_TRUE(server.AwaitLog("draining"));
  server.Signal(SIGHUP);  // a terminal that closes may send two; the second must not kill
  EXPECT_EQ(server.Wait(), 0) << server.Log();
  EXPECT_THAT(server.Log(), HasSubstr("stopped"));
}

TEST(ProcessStopTest, Sighup_WhereItIsIgnored_StopsNothing) {
  ServerProcess server({}, {}, -1, {"nohup"});
  server.Signal(SIGHUP);
  EXPECT_THAT(Client(server.address()).Create(SumSpec(), "r"), IsOk());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.Log(), HasSubstr("draining signal=15"));
}

TEST(ProcessStopTest, Sigterm_StreamThatNeverEnds_IsCutAtTheDeadline) {
  ServerProcess server({"--shutdown-deadline", "50ms"});
  HalfUpload upload(server);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(FromGrpc(upload.writer->Finish()), HasCode(Code::kUnavailable));
}

TEST(ProcessStopTest, Sigterm_ReadersThatTakeNothing_AreCutAfterTheDeadline) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/process_stop_test.", getpid());
  for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + path}) {
    ServerProcess server({"--grpc-address", address, "--shutdown-deadline", "50ms", "--log-level", "debug"});
    Client client(server.address());
    ASSERT_THAT(client.Create(SumSpec(1'000'000), "r"), IsOk());
    std::vector<uint32_t> keys(400'000);
    std::iota(keys.begin(), keys.end(), 0);
    ASSERT_THAT(client.SubmitUnary({MakeChunk("rounds/r", "a", keys, std::vector<float>(keys.size(), 1))}), IsOk());
    ASSERT_THAT(client.Finish("rounds/r"), IsOk());
    v1::GetResultRequest request;
    request.set_round("rounds/r");
    request.set_max_page_bytes(2 << 20);
    RawClient stuck(server.address(), RawClient::kWideWindow);
    for (int i = 0; i < 4; ++i) stuck.Call("GetResult", request);
    ASSERT_TRUE(stuck.ok());
    ASSERT_TRUE(server.AwaitLog("method=GetResult"));
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0) << address;
  }
}

}  // namespace
}  // namespace sparseagg::service
