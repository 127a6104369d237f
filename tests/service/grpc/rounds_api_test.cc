// The calls about the server and its rounds.
#include <google/protobuf/descriptor.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/resource.h>

#include <future>
#include <thread>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class RoundsApiTest : public ServerFixture {};

TEST_F(RoundsApiTest, GetServerInfo_History_HasTenMinutesOfTheTotals) {
  manual_time_ = true;
  const auto activity = [&] {
    grpc::ClientContext context;
    v1::GetServerInfoRequest request;
    request.set_with_activity(true);
    v1::ServerInfo info;
    EXPECT_THAT(FromGrpc(client().stub().GetServerInfo(&context, request, &info)), IsOk());
    return info.activity();
  };
  const std::string name = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {1.0f})}), IsOk());
  // The task that adds a value takes the time of the next one from the clock, which must not move before.
  for (int i = 0; i < 130; ++i) {
    Advance(absl::Seconds(5));
    clock_.AwaitDue(server().context().timer);
  }
  const v1::ServerActivity ten_minutes = activity();
  EXPECT_EQ(ten_minutes.num_submissions_history_size(), 120);
  EXPECT_EQ(ten_minutes.resident_bytes_history_size(), 120);
  EXPECT_EQ(ten_minutes.num_submissions(), 1);
  EXPECT_THAT(ten_minutes.num_submissions_history(), ::testing::Each(1));
  EXPECT_EQ(ten_minutes.received_bytes_history(119), ten_minutes.received_bytes());
}

// Its rounds would not be where it says.
TEST_F(RoundsApiTest, TenantHeader_OnAServerWithoutCredentials_IsRefused) {
  const auto with_tenant = [&](const char* tenant) {
    grpc::ClientContext context;
    context.AddMetadata("sparseagg-tenant", tenant);
    v1::ServerInfo info;
    return FromGrpc(client().stub().GetServerInfo(&context, {}, &info));
  };
  EXPECT_THAT(with_tenant("red"), Fails(Code::kInvalidArgument,
                                        "sparseagg-tenant 'red': a server without credentials has no tenants; leave it "
                                        "out"));
  EXPECT_THAT(with_tenant("default"), IsOk());
}

TEST_F(RoundsApiTest, GetServerInfo_Connections_AreAsManyAsTheProcessMayOpenFilesFor) {
  options_.limits.max_connections = 0;
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_THAT(FromGrpc(client().stub().GetServerInfo(&context, {}, &info)), IsOk());
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_GT(info.limits().max_connections(), 0);
  EXPECT_LT(info.limits().max_connections(), files.rlim_cur / 2);
}

TEST_F(RoundsApiTest, ListRounds_LongSpecs_AreCutToWhatAClientTakes) {
  v1::RoundSpec spec;
  for (int t = 0; t < 1000; ++t) {
    *spec.add_tensors() = SumSpec().tensors(0);
    spec.mutable_tensors(t)->set_name(std::string(240, 'x') + std::to_string(t));
  }
  for (int r = 0; r < 20; ++r) Create(spec, std::to_string(r));  // 5 MB in all
  v1::ListRoundsRequest request;
  std::vector<std::string> names;
  int pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListRoundsResponse response;
    ASSERT_THAT(FromGrpc(client().stub().ListRounds(&context, request, &response)), IsOk());
    for (const v1::Round& round : response.rounds()) names.push_back(round.name());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_GT(pages, 1);
  ASSERT_EQ(names.size(), 20);
  for (int r = 0; r < 20; ++r) EXPECT_EQ(names[r], "rounds/" + std::to_string(r));
}

TEST_F(RoundsApiTest, WaitRound_MoreWaitersThanThreads_HoldsNone) {
  const std::string name = Create(SumSpec());
  std::vector<std::thread> waiters;
  std::atomic<int> done{0};
  for (int i = 0; i < 20; ++i) {
    waiters.emplace_back([&] {
      Client own(server().grpc_address());
      const auto round = own.Wait(name, absl::Seconds(60));
      done += round.ok() && round->state() == v1::ROUND_STATE_DONE ? 1 : 0;
    });
  }
  // The waiting calls take none of the two threads of the pool.
  EXPECT_THAT(client().SubmitUnary({MakeChunk(name, "a", {1}, {1})}), IsOk());
  EXPECT_THAT(client().Finish(name), IsOk());
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(done, 20);
}

TEST_F(RoundsApiTest, WaitRound_ClientGivesUp_LeavesNothingBehind) {
  const std::string name = Create(SumSpec());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  v1::WaitRoundRequest request;
  request.set_name(name);
  v1::Round round;
  EXPECT_THAT(FromGrpc(client().stub().WaitRound(&context, request, &round)), HasCode(Code::kDeadlineExceeded));
  EXPECT_THAT(client().Finish(name), IsOk());
}

TEST_F(RoundsApiTest, CreateRound_OfACluster_HasUpTo1024Servers) {
  v1::RoundSpec spec = SumSpec();
  const auto add = [&](int number) {
    v1::HomeServer& server = *spec.mutable_cluster()->add_servers();
    server.set_address(absl::StrCat("server-", number, ":8001"));
    server.set_http_url(absl::StrCat("http://server-", number, ":8080"));
    server.set_instance(std::string(36, 'i'));
  };
  for (int i = 0; i < 1024; ++i) add(i);
  EXPECT_THAT(client().Create(spec, "most"), IsOk());
  add(1024);
  EXPECT_THAT(client().Create(spec, "more"), Fails(Code::kInvalidArgument, HasSubstr("1025 servers; 1 to 1024")));
}

// Calls whose requests have only names and ids.
TEST_F(RoundsApiTest, Calls_OfMessagesFarBeyondNames_AreRefusedUnparsed) {
  options_.limits.max_tensors = 1;
  std::string groups;  // a field that nobody knows, begun and ended, each of which becomes 48 bytes
  for (int i = 0; i < 40'000; ++i) groups += "\x7b\x7c";
  const grpc::Slice slice(groups);
  const grpc::ByteBuffer request(&slice, 1);
  const auto* calls = v1::Round::descriptor()->file()->FindServiceByName("Aggregation");
  grpc::GenericStub stub(client().channel());
  for (int i = 0; i < calls->method_count(); ++i) {
    const auto& call = *calls->method(i);
    const bool is_large = call.name() == "PutChunk" || call.name() == "SubmitBatch" || call.name() == "PutResultRange";
    if (call.client_streaming() || is_large) continue;
    if (call.name() == "CloseRound") continue;  // lists client ids: ParseIdList has another bound
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    std::promise<grpc::Status> ended;
    stub.UnaryCall(&context, "/sparseagg.v1.Aggregation/" + call.name(), {}, &request, &response,
                   [&](const grpc::Status& status) { ended.set_value(status); });
    EXPECT_THAT(FromGrpc(ended.get_future().get()), Fails(Code::kResourceExhausted, HasSubstr("80000 bytes")))
        << call.name();
  }
}

TEST_F(RoundsApiTest, WaitRound_MoreThanThereIsMemoryFor_AreRefusedUntilOneIsOver) {
  options_.limits.memory_limit_bytes = uint64_t{256} << 20;
  const std::string name = Create(SumSpec());
  CountLimit& waits = server().context().waits.all();
  EXPECT_EQ(waits.limit(), 1280);  // 16 KiB each of a quarter of 80 MiB
  for (uint64_t i = 0; i < waits.limit(); ++i) ASSERT_TRUE(waits.TryAcquire());
  EXPECT_THAT(
      client().Wait(name, absl::ZeroDuration()),
      Fails(Code::kResourceExhausted, AllOf(HasSubstr("1280 calls already wait"), HasSubstr("suggested retry delay"))));
  waits.Release();
  EXPECT_THAT(client().Wait(name, absl::ZeroDuration()), IsOk());
  while (waits.taken() != waits.limit() - 1) std::this_thread::yield();
}

TEST_F(RoundsApiTest, Drain_NewRoundsAndWaitingAreRefusedAndOpenRoundsGoOn) {
  const std::string name = Create(SumSpec());
  const std::string ended = Create(SumSpec(), "ended");
  ASSERT_THAT(client().Finish(ended), IsOk());
  server().Drain();
  EXPECT_THAT(client().Create(SumSpec(), "s"), Fails(Code::kUnavailable, HasSubstr("shutting down")));
  EXPECT_THAT(client().Aggregate(SumSpec(), {}), HasCode(Code::kUnavailable));
  EXPECT_THAT(client().Wait(name, absl::Seconds(60)), Fails(Code::kUnavailable, HasSubstr("shutting down")));
  EXPECT_THAT(client().SubmitUnary({MakeChunk(name, "a", {1}, {1})}), IsOk());
  EXPECT_EQ(client().Get(name)->num_submissions(), 1);
  EXPECT_THAT(client().Wait(ended, absl::Seconds(60)), IsOk());
}

}  // namespace
}  // namespace sparseagg::service
