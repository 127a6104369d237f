// The log of sparseagg-server as a process: its content, and a server whose log nobody reads.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "service/net/listener.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/server_process.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

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

}  // namespace
}  // namespace sparseagg::service
