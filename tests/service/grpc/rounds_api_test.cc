// The calls about the server, its rounds, their timelines and their committed submissions.
#include <google/protobuf/descriptor.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
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
  request.set_round(name);
  v1::Round round;
  EXPECT_THAT(FromGrpc(client().stub().WaitRound(&context, request, &round)), HasCode(Code::kDeadlineExceeded));
  EXPECT_THAT(client().Finish(name), IsOk());
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

// ---- The timeline of a round.

class TimelineTest : public ServerFixture {
 protected:
  v1::StageTime StageOf(const std::string& round, const std::string& stage) {
    const auto got = client().Get(round);
    EXPECT_THAT(got, IsOk());
    for (const v1::StageTime& time : got->timeline().stages()) {
      if (time.stage() == stage) return time;
    }
    ADD_FAILURE() << "no stage " << stage;
    return {};
  }
  static absl::Duration Of(const google::protobuf::Duration& duration) {
    return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  }
};

TEST_F(TimelineTest, Stages_OfAWholeRound_HaveItsBytesAndAreBusy) {
  const std::string round = Create(SumSpec());
  const std::vector<v1::UpdateChunk> chunks = {MakeChunk(round, "a", {1, 2}, {1, 2}, 0, false),
                                               MakeChunk(round, "a", {3}, {3}, 1, true)};
  ASSERT_THAT(client().SubmitStream(chunks), IsOk());
  ASSERT_THAT(client().SubmitUnary({MakeChunk(round, "b", {1}, {1})}), IsOk());
  ASSERT_THAT(client().Finish(round), IsOk());
  const std::string pages = client().ResultBytes(round);

  const auto got = client().Get(round);
  ASSERT_THAT(got, IsOk());
  std::string names;
  for (const v1::StageTime& time : got->timeline().stages()) names += time.stage() + " ";
  EXPECT_EQ(names, "receive decode prepare merge encode ");
  const uint64_t sent =
      chunks[0].ByteSizeLong() + chunks[1].ByteSizeLong() + MakeChunk(round, "b", {1}, {1}).ByteSizeLong();
  EXPECT_EQ(StageOf(round, "receive").bytes(), sent);
  EXPECT_EQ(StageOf(round, "decode").bytes(), 32);
  EXPECT_EQ(StageOf(round, "prepare").bytes(), 32);
  EXPECT_EQ(StageOf(round, "merge").bytes(), 32);
  EXPECT_EQ(StageOf(round, "encode").bytes(), pages.size());
  for (const char* stage : {"decode", "prepare", "merge", "encode"}) {
    EXPECT_GT(Of(StageOf(round, stage).busy()), absl::ZeroDuration()) << stage;
  }
}

TEST_F(TimelineTest, Receive_ClientThatTakesItsTime_IsTheLongestPole) {
  manual_time_ = true;
  const std::string round = Create(SumSpec());
  grpc::ClientContext context;
  v1::CommitSubmissionResponse submission;
  const auto writer = client().stub().SubmitUpdate(&context, &submission);
  ASSERT_TRUE(writer->Write(MakeChunk(round, "a", {1}, {1}, 0, false)));
  // The server reads the second chunk while it decodes the first.
  while (client().Get(round)->num_uploads() != 1) {
  }
  Advance(absl::Seconds(3));
  ASSERT_TRUE(writer->Write(MakeChunk(round, "a", {2}, {2}, 1, true)));
  writer->WritesDone();
  ASSERT_THAT(FromGrpc(writer->Finish()), IsOk());
  EXPECT_EQ(Of(StageOf(round, "receive").wait()), absl::Seconds(3));
  EXPECT_EQ(Of(StageOf(round, "receive").busy()), absl::ZeroDuration());
  EXPECT_EQ(client().Get(round)->timeline().longest(), "receive");
}

// ---- The calls about committed submissions: ListSubmissions, WithdrawSubmission, and CloseRound with a list.

class SubmissionsApiTest : public ServerFixture {};

TEST_F(SubmissionsApiTest, List_LongIds_ComeInPagesThatAClientTakes) {
  const std::string round = Create(SumSpec());
  constexpr int kClients = 1100;
  for (int i = 0; i < kClients; ++i) {
    v1::UpdateChunk chunk = MakeChunk(round, absl::StrCat(1000 + i, std::string(252, 'x')), {}, {});
    chunk.set_submission_id(std::string(256, 'y'));
    ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  }
  v1::ListSubmissionsRequest request;
  request.set_round(round);
  request.set_page_size(1'000'000);
  int seen = 0;
  int pages = 0;
  do {
    const auto page = client().Submissions(request);
    ASSERT_THAT(page, IsOk());
    EXPECT_LE(page->ByteSizeLong(), 1 << 20);
    for (const v1::Submission& submission : page->submissions()) {
      EXPECT_EQ(submission.client_id().substr(0, 4), absl::StrCat(1000 + seen++));
    }
    request.set_page_token(page->next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, kClients);
  EXPECT_EQ(pages, 2);
}

// More than the 4 KiB of other requests.
TEST_F(SubmissionsApiTest, CloseRound_LongList_IsTaken) {
  const std::string name = Create(SumSpec());
  std::vector<std::string> only;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = absl::StrCat("client-", i);
    ASSERT_THAT(client().SubmitUnary({MakeChunk(name, id, {7}, {1})}), IsOk());
    if (i % 2 == 0) only.push_back(id);
  }
  ASSERT_THAT(client().Close(name, only), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(7, 500)));
}

TEST_F(SubmissionsApiTest, CloseRound_ListBeyondTheLimits_IsRefusedBeforeItIsParsed) {
  options_.limits.max_message_bytes = 1 << 20;
  options_.limits.memory_limit_bytes = uint64_t{256} << 20;
  const std::string name = Create(SumSpec());
  // Empty ids take two bytes on the wire, and sixty in memory.
  EXPECT_THAT(client().Close(name, std::vector<std::string>(500'000)),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("500001 ids"), HasSubstr("memory limit"))));
  EXPECT_THAT(client().Close(name, std::vector<std::string>(5'000, std::string(250, 'x'))),
              Fails(Code::kResourceExhausted, HasSubstr("max_message_bytes 1048576")));
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_OPEN);
}

}  // namespace
}  // namespace sparseagg::service
