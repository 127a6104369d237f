// Slow clients that occupy in-flight memory: their messages do not arrive, or their pages are not read.
#include <atomic>
#include <numeric>
#include <thread>

#include "service/admission/memory_shares.h"
#include "tests/service/support/raw_client.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// In-flight memory for three messages of the largest size.
class SlowClientsTest : public ServerFixture {
 protected:
  SlowClientsTest() {
    manual_time_ = true;
    options_.limits.max_message_bytes = 1 << 20;
    options_.limits.memory_limit_bytes = uint64_t{100} << 20;
  }

  struct Stream {
    Stream(v1::Aggregation::Stub& stub, const v1::UpdateChunk& first) : writer(stub.SubmitUpdate(&context, &response)) {
      EXPECT_TRUE(writer->Write(first));
    }
    grpc::ClientContext context;
    v1::CommitSubmissionResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::UpdateChunk>> writer;
  };

  // Sends the first of several chunks and then nothing. Two of these take a host's share of in-flight memory.
  std::unique_ptr<Stream> Stall(const std::string& round, const std::string& name) {
    auto stream = std::make_unique<Stream>(client().stub(), MakeChunk(round, name, {1}, {1}, 0, false));
    const uint64_t others = num_stalled_++;
    while (client().Get(round)->num_uploads() != others + 1) std::this_thread::yield();
    return stream;
  }

 private:
  uint64_t num_stalled_ = 0;
};

TEST_F(SlowClientsTest, Stalled_OthersWait_TheOldestIsReclaimedAndTheyGoOn) {
  const std::string round = Create(SumSpec());
  const auto first = Stall(round, "a");
  const auto second = Stall(round, "b");
  absl::StatusOr<v1::CommitSubmissionResponse> submitted = absl::UnknownError("");
  std::thread good([&] { submitted = client().SubmitStream({MakeChunk(round, "good", {2}, {5})}); });
  AwaitWaiting(1);
  Advance(InFlightMemory::kReclaimAfter);
  EXPECT_THAT(FromGrpc(first->writer->Finish()), Fails(Code::kUnavailable, HasSubstr("other calls waited")));
  good.join();
  EXPECT_THAT(submitted, IsOk());
  // The other stalled stream is unharmed.
  EXPECT_TRUE(second->writer->Write(MakeChunk(round, "b", {2}, {1}, 1)));
  second->writer->WritesDone();
  EXPECT_THAT(FromGrpc(second->writer->Finish()), IsOk());
  EXPECT_EQ(client().Get(round)->num_refused(), 1);
  EXPECT_THAT(ResultOf(round), ::testing::ElementsAre(::testing::Pair(1, 1), ::testing::Pair(2, 6)));
}

TEST_F(SlowClientsTest, Unary_OthersStall_WaitsAsStreamsDo) {
  const std::string round = Create(SumSpec());
  const auto first = Stall(round, "a");
  const auto second = Stall(round, "b");
  absl::StatusOr<v1::UploadStatus> put = absl::UnknownError("");
  std::thread good([&] { put = client().Put(MakeChunk(round, "good", {2}, {5})); });
  AwaitWaiting(1);
  Advance(InFlightMemory::kReclaimAfter);
  good.join();
  EXPECT_THAT(put, IsOk());
  EXPECT_THAT(FromGrpc(first->writer->Finish()), Fails(Code::kUnavailable, HasSubstr("other calls waited")));
}

TEST_F(SlowClientsTest, Unary_NoRoomForTooLong_IsRefusedWithADelay) {
  const std::string round = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "a", {1}, {1})}), IsOk());
  EXPECT_THAT(ResultOf(round), ::testing::ElementsAre(::testing::Pair(1, 1)));
  while (in_flight().reserved() != 0) std::this_thread::yield();
  InFlightReservation all;
  const uint64_t bytes = in_flight().limit() - kStreamBytes;  // room for the call itself
  in_flight().Acquire(
      bytes, [&](InFlightReservation reservation) { all = std::move(reservation); }, [] {});
  all.ShrinkTo(bytes);  // as for complete messages
  const auto is_refused_with_a_delay = [this](const std::function<grpc::Status(grpc::ClientContext&)>& call) {
    grpc::ClientContext context;
    grpc::Status refused;
    std::thread caller([&] { refused = call(context); });
    AwaitWaiting(1);
    Advance(InFlightMemory::kBoundedWait);
    caller.join();
    EXPECT_THAT(FromGrpc(refused), Fails(Code::kResourceExhausted, HasSubstr("suggested retry delay: 500 ms")));
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto delay = metadata.find("grpc-retry-pushback-ms");
    ASSERT_NE(delay, metadata.end());
    EXPECT_EQ(delay->second, "500");
  };
  is_refused_with_a_delay([&](grpc::ClientContext& context) {
    v1::UploadStatus status;
    return client().stub().PutChunk(&context, MakeChunk(round, "good", {2}, {5}), &status);
  });
  is_refused_with_a_delay([&](grpc::ClientContext& context) {
    v1::GetResultRequest request;
    request.set_round(round);
    v1::ResultPage page;
    return client().stub().GetResult(&context, request, &page);
  });
  all.Release();
  EXPECT_THAT(ResultOf(round), ::testing::ElementsAre(::testing::Pair(1, 1)));
}

// The client's deadline would run while the call waits for a thread.
TEST_F(SlowClientsTest, GetResult_BeforeAThreadRunsIt_ReservesNothingForItsPage) {
  options_.num_threads = 1;
  const std::string round = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "a", {1}, {1})}), IsOk());
  ASSERT_THAT(client().Finish(round), IsOk());
  while (in_flight().reserved() != 0) std::this_thread::yield();
  BusyThread thread(server().context().pool);
  v1::GetResultRequest request;
  request.set_round(round);
  absl::StatusOr<v1::ResultPage> page = absl::UnknownError("");
  std::thread reader([&] { page = client().Page(request); });
  while (in_flight().reserved() == 0) std::this_thread::yield();
  bool granted = false;
  in_flight().Acquire(
      in_flight().limit() - kStreamBytes, [&](const InFlightReservation&) { granted = true; }, [] {});
  EXPECT_TRUE(granted);
  thread.Release();
  reader.join();
  EXPECT_THAT(page, IsOk());
}

TEST_F(SlowClientsTest, Page_OfARowThatIsLongerThanAskedFor_WaitsForRoomForTheRow) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_tensors(0)->set_row_width(65536);
  const std::string round = Create(spec);
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "a", {1}, std::vector<float>(65536, 1))}), IsOk());
  ASSERT_THAT(client().Finish(round), IsOk());
  while (in_flight().reserved() != 0) std::this_thread::yield();
  InFlightReservation most;
  in_flight().Acquire(
      in_flight().limit() - 2 * kStreamBytes, [&](InFlightReservation reservation) { most = std::move(reservation); },
      [] {});
  absl::Status page;
  std::thread pager([&] {
    v1::GetResultRequest request;
    request.set_round(round);
    request.set_max_page_bytes(1);
    page = client().Page(request).status();
  });
  AwaitWaiting(1);
  absl::Status stream;
  std::thread streamer([&] {
    v1::StreamResultRequest request;
    request.set_round(round);
    request.set_max_page_bytes(1);
    stream = client().Stream(request).status();
  });
  AwaitWaiting(2);
  most.Release();
  pager.join();
  streamer.join();
  EXPECT_THAT(page, IsOk());
  EXPECT_THAT(stream, IsOk());
}

// The status needs no memory, even if other calls wait for the memory of the last page.
TEST_F(SlowClientsTest, StreamResult_AfterItsLastPage_EndsAtOnce) {
  const std::string round = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "a", {1}, {1})}), IsOk());
  ASSERT_THAT(client().Finish(round), IsOk());
  while (in_flight().reserved() != 0) std::this_thread::yield();
  v1::StreamResultRequest request;
  request.set_round(round);
  RawClient reader(server().grpc_address(), RawClient::kNoWindow);
  reader.Call("StreamResult", request);
  ASSERT_TRUE(reader.ok());
  while (in_flight().reserved() <= kStreamBytes) std::this_thread::yield();
  const uint64_t bytes = in_flight().limit() - kStreamBytes;
  InFlightReservation most;
  Event granted;
  in_flight().Acquire(
      bytes,
      [&](InFlightReservation reservation) {
        most = std::move(reservation);
        granted.Notify();
      },
      [] {});
  Event last;
  in_flight().Acquire(
      bytes, [&](const InFlightReservation&) { last.Notify(); }, [] {});
  EXPECT_EQ(in_flight().num_waiting(), 2);
  reader.OpenWindow();
  granted.Wait();
  while (in_flight().reserved() != bytes) std::this_thread::yield();  // the stream has ended
  EXPECT_FALSE(last.HasHappened());
  most.Release();
  last.Wait();
}

TEST_F(SlowClientsTest, WaitsForRoom_ClientGoesAway_LeavesNothing) {
  const std::string round = Create(SumSpec());
  auto first = Stall(round, "a");
  const auto second = Stall(round, "b");
  auto gone = std::make_unique<Stream>(client().stub(), MakeChunk(round, "gone", {1}, {1}, 0, false));
  AwaitWaiting(1);
  gone->context.TryCancel();
  EXPECT_THAT(FromGrpc(gone->writer->Finish()), HasCode(Code::kCancelled));
  first->context.TryCancel();
  (void)first->writer->Finish();
  AwaitWaiting(0);
  while (client().Get(round)->num_uploads() != 1) std::this_thread::yield();
  second->context.TryCancel();
  (void)second->writer->Finish();
  while (in_flight().reserved() != 0) std::this_thread::yield();
}

TEST_F(SlowClientsTest, HeldBackInMidStream_LongerThanTheUploadTimeout_IsNotStalled) {
  options_.limits.upload_timeout = absl::Seconds(30);
  const std::string round = Create(SumSpec());
  const auto stream = Stall(round, "a");
  // The next waiter needs almost all memory, so that the second chunk of the stream is read and the third is not.
  Event granted;
  InFlightReservation everything;
  in_flight().Acquire(
      in_flight().limit() - (uint64_t{256} << 10),
      [&](InFlightReservation reservation) {
        everything = std::move(reservation);
        granted.Notify();
      },
      [] {});
  EXPECT_TRUE(stream->writer->Write(MakeChunk(round, "a", {2}, {1}, 1, false)));
  granted.Wait();
  AwaitWaiting(1);
  Advance(absl::Seconds(100));
  clock_.AwaitDue(server().context().timer);
  EXPECT_EQ(client().Get(round)->num_uploads(), 1);
  everything.Release();
  EXPECT_TRUE(stream->writer->Write(MakeChunk(round, "a", {3}, {1}, 2)));
  stream->writer->WritesDone();
  EXPECT_THAT(FromGrpc(stream->writer->Finish()), IsOk());
  EXPECT_EQ(ResultOf(round).size(), 3);
}

TEST_F(SlowClientsTest, Streams_MoreThanThereIsRoomFor_AreRefusedWithADelay) {
  options_.limits.max_message_bytes = 64 << 10;  // 4 × 84 KiB in all, half of it for streams
  const std::string round = Create(SumSpec());
  const auto first = Stall(round, "a");
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  const auto second = client().stub().SubmitUpdate(&context, &response);
  EXPECT_THAT(FromGrpc(second->Finish()), Fails(Code::kResourceExhausted, HasSubstr("suggested retry delay")));
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1);
}

// Each open call reserves little and no call waits: further calls are refused.
TEST_F(SlowClientsTest, SmallAnswersAreNotTaken_OthersAreRefused_MakeRoom) {
  const std::string read = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(read, "a", {1}, {1})}), IsOk());
  ASSERT_THAT(client().Finish(read), IsOk());
  const std::string open = Create(SumSpec(), "open");
  v1::GetResultRequest page;
  page.set_round(read);
  page.set_max_page_bytes(1);
  v1::StreamResultRequest pages;
  pages.set_round(read);
  const auto chunk = MakeChunk(open, "unread", {1}, {1}, 0, false);
  const auto expect_room_is_made = [&](const std::string& method, const google::protobuf::MessageLite& request) {
    while (in_flight().reserved() != 0) std::this_thread::yield();
    RawClient unread(server().grpc_address(), RawClient::kNoWindow);
    absl::StatusOr<v1::ResultPage> got;
    while ((got = client().Page(page)).ok()) unread.Call(method, request);
    EXPECT_THAT(got, HasCode(Code::kResourceExhausted)) << method;
    Advance(InFlightMemory::kReclaimAfter);
    while (!(got = client().Page(page)).ok()) {
      ASSERT_THAT(got, HasCode(Code::kResourceExhausted)) << method;
      Advance(InFlightMemory::kReclaimInterval);
    }
  };
  expect_room_is_made("GetResult", page);
  expect_room_is_made("StreamResult", pages);
  expect_room_is_made("PutChunk", chunk);
}

// The call is reclaimed at the moment when the client ends its side: it is still answered.
TEST_F(SlowClientsTest, Aggregate_ReclaimedAsItEnds_IsAnswered) {
  options_.num_threads = 1;
  Event prepared;
  hooks_.prepare = [&] {
    prepared.Notify();
    return absl::OkStatus();
  };
  WorkerPool& pool = server().context().pool;
  grpc::ClientContext context;
  const auto stream = client().stub().Aggregate(&context);
  v1::AggregateRequest spec;
  *spec.mutable_spec() = SumSpec();
  v1::AggregateRequest chunk;
  *chunk.mutable_chunk() = MakeChunk("", "a", {1}, {2});
  EXPECT_TRUE(stream->Write(spec));
  EXPECT_TRUE(stream->Write(chunk));
  prepared.Wait();
  Event reads_on;
  pool.Post([&] { reads_on.Notify(); });
  reads_on.Wait();

  const std::string round = Create(SumSpec());
  const auto first = Stall(round, "a");
  const Stream second(client().stub(), MakeChunk(round, "b", {1}, {1}, 0, false));
  AwaitWaiting(1);
  BusyThread thread(pool);
  Advance(InFlightMemory::kReclaimAfter);
  clock_.AwaitDue(server().context().timer);  // the attempt is posted to the pool
  EXPECT_TRUE(stream->WritesDone());
  AwaitWaiting(0);  // the server has seen the end
  thread.Release();
  first->context.TryCancel();  // room for the pages

  std::vector<v1::ResultPage> pages;
  for (v1::ResultPage page; stream->Read(&page);) pages.push_back(page);
  EXPECT_THAT(FromGrpc(stream->Finish()), IsOk());
  EXPECT_THAT(ToMap(pages), ::testing::ElementsAre(::testing::Pair(1, 2)));
}

TEST_F(SlowClientsTest, ManyPagesAndMessages_ReleaseAll) {
  const std::string round = Create(SumSpec(100'000));
  for (int c = 0; c < 5; ++c) {
    std::vector<uint32_t> keys(10'000);
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = 10 * i;
    const auto chunk = MakeChunk(round, std::to_string(c), keys, std::vector<float>(keys.size(), 1));
    ASSERT_THAT(c % 2 == 0 ? client().SubmitStream({chunk}) : client().SubmitUnary({chunk}), IsOk());
  }
  EXPECT_EQ(ResultOf(round).size(), 10'000);
  v1::StreamResultRequest request;
  request.set_round(round);
  request.set_max_page_bytes(1000);
  EXPECT_THAT(client().Stream(request), IsOk());
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1})}), IsOk());
  while (in_flight().reserved() != 0) std::this_thread::yield();
  EXPECT_EQ(in_flight().num_waiting(), 0);
}

// ---- Clients that read nothing, so that gRPC fills their connections.

class StuckClientsTest : public ServerFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  // In-flight memory for one page of 2 MiB.
  StuckClientsTest() {
    manual_time_ = true;
    options_.num_threads = 1;
    options_.limits.max_message_bytes = 1 << 20;
    options_.limits.memory_limit_bytes = uint64_t{100} << 20;
    options_.grpc_address = GetParam();
    if (options_.grpc_address == "unix:") {
      options_.grpc_address += absl::StrCat(::testing::TempDir(), "/stuck_clients_test.", getpid());
    }
  }

  // Advances the clock and waits for the reclaim attempts to end.
  void PassTime(absl::Duration time) {
    Advance(time);
    clock_.AwaitDue(server().context().timer);
    Event passed;
    server().context().pool.Post([&] { passed.Notify(); });
    passed.Wait();
  }
};

TEST_P(StuckClientsTest, ReadsNothing_OthersWait_ItsConnectionIsEnded) {
  if (options_.grpc_address == "[::1]:0" && !Listener::Open(options_.grpc_address).ok()) GTEST_SKIP() << "no IPv6";
  const std::string round = Create(SumSpec(1'000'000));
  for (uint32_t part = 0; part < 8; ++part) {
    std::vector<uint32_t> keys(100'000);
    std::iota(keys.begin(), keys.end(), part * 100'000);
    const auto chunk = MakeChunk(round, std::to_string(part), keys, std::vector<float>(keys.size(), 1));
    ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  }
  ASSERT_THAT(client().Finish(round), IsOk());
  InFlightMemory& in_flight = server().context().in_flight;
  while (in_flight.reserved() != 0) std::this_thread::yield();

  v1::GetResultRequest page;
  page.set_round(round);
  page.set_max_page_bytes(2 << 20);
  RawClient stuck(server().grpc_address(), RawClient::kWideWindow);
  // The answers of several calls exceed the buffers of any socket.
  constexpr uint64_t kStuckCalls = 8;
  for (uint64_t i = 0; i < kStuckCalls; ++i) stuck.Call("GetResult", page);
  ASSERT_TRUE(stuck.ok());
  while (in_flight.num_waiting() == 0) std::this_thread::yield();

  // Waits in the same queue, from the same address.
  v1::StreamResultRequest request;
  request.set_round(round);
  request.set_max_page_bytes(2 << 20);
  std::atomic<bool> is_read = false;
  std::thread reader([&] {
    EXPECT_THAT(client().Stream(request), IsOk());
    is_read = true;
  });
  while (!is_read) PassTime(InFlightMemory::kReclaimInterval);
  reader.join();
  stuck.Drain();
  while (in_flight.reserved() != 0) std::this_thread::yield();
}

INSTANTIATE_TEST_SUITE_P(Addresses, StuckClientsTest, ::testing::Values("127.0.0.1:0", "[::1]:0", "unix:"));

}  // namespace
}  // namespace sparseagg::service
