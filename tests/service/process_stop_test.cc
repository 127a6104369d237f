// How sparseagg-server stops on a signal.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/support/raw_client.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/server_process.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

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
    request.set_name("rounds/r");
    request.set_max_page_bytes(2 << 20);
    RawClient stuck(server.address(), RawClient::kWideWindow);
    for (int i = 0; i < 4; ++i) stuck.Call("GetResult", request);
    ASSERT_TRUE(stuck.ok());
    ASSERT_TRUE(server.AwaitLog("method=GetResult"));
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0) << address;
  }
}

TEST(ProcessStopTest, Sigterm_WhileSomebodyWaits_TellsThemThatItStops) {
  ServerProcess server({"--shutdown-deadline", "60s", "--log-level", "debug"});
  Client client(server.address());
  ASSERT_THAT(client.Create(SumSpec(), "r"), IsOk());
  absl::StatusOr<v1::Round> waited = absl::UnknownError("");
  std::thread waiter([&] { waited = client.Wait("rounds/r", absl::Seconds(50)); });
  ASSERT_TRUE(server.AwaitLog("method=WaitRound"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  waiter.join();
  EXPECT_THAT(waited, Fails(Code::kUnavailable, HasSubstr("shutting down")));
}

}  // namespace
}  // namespace sparseagg::service
