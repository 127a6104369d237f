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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class RoundsApiTest : public ServerFixture {};

TEST_F(RoundsApiTest, GetServerInfo_Limits_AreThoseTheServerEnforces) {
  options_.limits.max_tensors = 2;
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_THAT(FromGrpc(client().stub().GetServerInfo(&context, {}, &info)), IsOk());
  EXPECT_THAT(info.version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.api_versions(), ElementsAre("sparseagg.v1"));
  EXPECT_EQ(info.engine(), "cpu");
  EXPECT_THAT(info.engine_description(), HasSubstr("CPU"));
  EXPECT_THAT(info.key_encodings(), ElementsAre(v1::KEY_ENCODING_U32, v1::KEY_ENCODING_U64, v1::KEY_ENCODING_IMPLICIT,
                                                v1::KEY_ENCODING_DELTA_BITPACKED));
  EXPECT_EQ(info.value_encodings_size(), 11);
  EXPECT_THAT(info.features(), ElementsAre("ListSubmissions", "WithdrawSubmission", "CloseRoundRequest.only_client_ids",
                                           "AggregationSpec.on_empty", "OP_MEDIAN", "AggregationSpec.result_top_k",
                                           "AggregationSpec.return_moments", "TensorSpec.shape", "Tasks", "SubmitBatch",
                                           "RoundSpec.clip", "AggregationSpec.mean_divisor", "SealRound",
                                           "InspectRound", "CloseRoundRequest.client_weights", "RoundSpec.privacy",
                                           "RoundSpec.certificate", "ExportSubmissions", "RoundSpec.cluster", "Streams",
                                           "ExportPartial", "PutResultRange", "CreateBackup"));
  EXPECT_FALSE(info.has_activity());
  EXPECT_EQ(info.limits().max_tensors(), 2);
  EXPECT_EQ(info.limits().max_result_ttl().seconds(), 3600);
  v1::RoundSpec spec = SumSpec();
  for (int i = 0; i < 2; ++i) *spec.add_tensors() = spec.tensors(0);
  EXPECT_THAT(client().Create(spec, "r"), Fails(Code::kResourceExhausted, HasSubstr("max_tensors 2")));
}

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

TEST_F(RoundsApiTest, Round_FromCreationToEnd_TellsItsFigures) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_return_counts(true);
  auto round = client().Create(spec, "my-round");
  ASSERT_THAT(round, IsOk());
  EXPECT_EQ(round->name(), "rounds/my-round");
  EXPECT_EQ(round->state(), v1::ROUND_STATE_OPEN);
  EXPECT_EQ(round->spec().SerializeAsString(), spec.SerializeAsString());
  EXPECT_EQ(round->engine(), "cpu");
  EXPECT_FALSE(round->has_close_time());
  ASSERT_THAT(client().SubmitUnary({MakeChunk(round->name(), "a", {1, 2}, {1, 2})}), IsOk());
  round = client().Finish(round->name());
  ASSERT_THAT(round, IsOk());
  EXPECT_EQ(round->state(), v1::ROUND_STATE_DONE);
  EXPECT_EQ(round->num_submissions(), 1);
  EXPECT_EQ(round->num_tuples(), 2);
  EXPECT_EQ(round->num_bytes(), 16);
  EXPECT_EQ(round->expire_time().seconds() - round->end_time().seconds(), 3600);
  EXPECT_GT(round->timeline().finish().nanos(), 0);
  EXPECT_GT(round->timeline().open().nanos() + round->timeline().open().seconds(), 0);
  ASSERT_EQ(round->results_size(), 1);
  EXPECT_EQ(round->results(0).name(), "v");
  EXPECT_EQ(round->results(0).num_keys(), 2);
  EXPECT_EQ(round->results(0).num_rows(), 100);
  EXPECT_TRUE(round->results(0).has_values());
  EXPECT_TRUE(round->results(0).has_counts());
  EXPECT_FALSE(round->results(0).has_weights());
}

TEST_F(RoundsApiTest, AnyCall_UnknownOrMalformedName_SaysSo) {
  EXPECT_THAT(client().Get("rounds/none"), Fails(Code::kNotFound, HasSubstr("'none'")));
  EXPECT_THAT(client().Close("rounds/none"), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Cancel("rounds/none"), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Wait("rounds/none", absl::Seconds(1)), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Delete("rounds/none"), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Put(MakeChunk("rounds/none", "a", {}, {})), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Commit(MakeChunk("rounds/none", "a", {}, {})), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Progress(MakeChunk("rounds/none", "a", {}, {})), HasCode(Code::kNotFound));
  EXPECT_THAT(client().SubmitStream({MakeChunk("rounds/none", "a", {}, {})}), HasCode(Code::kNotFound));
  v1::GetResultRequest result;
  result.set_name("rounds/none");
  EXPECT_THAT(client().Page(result), HasCode(Code::kNotFound));
  v1::StreamResultRequest stream;
  stream.set_name("rounds/none");
  EXPECT_THAT(client().Stream(stream), HasCode(Code::kNotFound));
  EXPECT_THAT(client().Get("none"), Fails(Code::kInvalidArgument, HasSubstr("rounds/ID")));
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

TEST_F(RoundsApiTest, ListRounds_BadPage_IsRefused) {
  v1::ListRoundsRequest request;
  request.set_page_size(-1);
  grpc::ClientContext context;
  v1::ListRoundsResponse response;
  EXPECT_THAT(FromGrpc(client().stub().ListRounds(&context, request, &response)),
              Fails(Code::kInvalidArgument, HasSubstr("-1")));
}

TEST_F(RoundsApiTest, WaitRound_RoundEndsMeanwhile_AnswersThen) {
  Hold finishing;
  hooks_.finish = finishing.Hook();
  const std::string name = Create(SumSpec());
  absl::StatusOr<v1::Round> waited = absl::UnknownError("");
  std::thread waiter([&] { waited = client().Wait(name, absl::Seconds(60)); });
  const auto closed = client().Close(name);
  ASSERT_THAT(closed, IsOk());
  EXPECT_EQ(closed->state(), v1::ROUND_STATE_FINALIZING);
  finishing.Wait();
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_FINALIZING);
  v1::GetResultRequest request;
  request.set_name(name);
  EXPECT_THAT(client().Page(request), Fails(Code::kFailedPrecondition, HasSubstr("FINALIZING")));
  finishing.Release();
  waiter.join();
  ASSERT_THAT(waited, IsOk());
  EXPECT_EQ(waited->state(), v1::ROUND_STATE_DONE);
}

TEST_F(RoundsApiTest, WaitRound_NoTimeoutGiven_IsTheServersMaximum) {
  options_.limits.max_wait = absl::Milliseconds(5);
  const std::string name = Create(SumSpec());
  grpc::ClientContext context;
  v1::WaitRoundRequest request;
  request.set_name(name);
  v1::Round round;
  EXPECT_THAT(FromGrpc(client().stub().WaitRound(&context, request, &round)), IsOk());
  EXPECT_THAT(client().Wait(name, absl::Hours(5)), IsOk());
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

TEST_F(RoundsApiTest, Deadline_Passes_ClosesAndExpires) {
  manual_time_ = true;
  v1::RoundSpec spec = SumSpec();
  spec.mutable_deadline()->set_seconds(30);
  spec.mutable_result_ttl()->set_seconds(5);
  const std::string name = Create(spec);
  ASSERT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {1})}), IsOk());
  Advance(absl::Seconds(30));
  auto round = client().Wait(name, absl::Seconds(60));
  ASSERT_THAT(round, IsOk());
  EXPECT_EQ(round->state(), v1::ROUND_STATE_DONE);
  EXPECT_EQ(round->timeline().open().seconds(), 30);
  EXPECT_EQ(round->expire_time().seconds() - round->end_time().seconds(), 5);
  Advance(absl::Seconds(5));
  while (client().Get(name).ok()) std::this_thread::yield();
}

TEST_F(RoundsApiTest, CreateRound_SpecFarBeyondMaxTensors_IsRefusedUnparsed) {
  options_.limits.max_tensors = 3;
  v1::RoundSpec spec;
  for (int i = 0; i < 100'000; ++i) spec.add_tensors();
  EXPECT_THAT(client().Create(spec, "r"),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("max_tensors 3"), HasSubstr("65536 bytes"))));
}

TEST_F(RoundsApiTest, CreateRound_SpecOfMoreFieldsThanItsTensorsMayHave_IsRefusedUnparsed) {
  options_.limits.max_tensors = 3;
  v1::CreateRoundRequest request;
  *request.mutable_spec() = SumSpec();
  std::string bytes = request.SerializeAsString();
  for (int i = 0; i < 5000; ++i) bytes += "\x7b\x7c";  // a group that nobody knows, of which there is a tag at each end
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::GenericStub stub(client().channel());
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/sparseagg.v1.Aggregation/CreateRound", {}, &message, &response,
                 [&](const grpc::Status& status) { ended.set_value(status); });
  EXPECT_THAT(FromGrpc(ended.get_future().get()),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("fields"), HasSubstr("max_tensors 3"))));
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
