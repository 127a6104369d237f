// Large responses of unary calls: their in-flight memory.
#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "service/admission/memory_shares.h"
#include "service/admission/process_memory.h"
#include "tests/service/support/raw_client.h"
#include "tests/service/support/server_fixture.h"
#include "tests/support/sanitized.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using testing::kSanitized;
using Code = absl::StatusCode;

class AnswersTest : public ServerFixture {
 protected:
  AnswersTest() {
    manual_time_ = true;
    options_.limits.max_message_bytes = 1 << 20;
    options_.limits.memory_limit_bytes = uint64_t{100} << 20;
  }

  static v1::RoundSpec LargeSpec() {
    v1::RoundSpec spec;
    for (int t = 0; t < 500; ++t) {
      v1::TensorSpec* tensor = spec.add_tensors();
      tensor->set_name(absl::StrCat(std::string(200, 'x'), t));
      tensor->set_dtype(v1::DTYPE_FLOAT32);
      tensor->set_num_rows(10);
    }
    return spec;
  }

  // Takes all in-flight memory except for the reservations of calls, as received messages would.
  InFlightReservation TakeAll() {
    while (in_flight().reserved() != 0) std::this_thread::yield();
    InFlightReservation all;
    const uint64_t bytes = in_flight().limit() - kStreamBytes;
    in_flight().Acquire(
        bytes, [&](InFlightReservation credit) { all = std::move(credit); }, [] {});
    all.ShrinkTo(bytes);
    return all;
  }
  // Expects that `call` waits for memory, and then gets a suggested retry delay.
  void ExpectRefused(const std::function<grpc::Status(grpc::ClientContext&)>& call) {
    grpc::ClientContext context;
    grpc::Status refused;
    std::thread caller([&] { refused = call(context); });
    AwaitWaiting(1);
    Advance(InFlightMemory::kBoundedWait);
    caller.join();
    EXPECT_THAT(FromGrpc(refused), Fails(Code::kResourceExhausted, HasSubstr("suggested retry delay: 500 ms")));
  }
};

TEST_F(AnswersTest, Large_NoRoom_IsRefusedAndNothingHasHappened) {
  const std::string round = Create(LargeSpec());
  InFlightReservation all = TakeAll();
  v1::Round answer;
  ExpectRefused([&](grpc::ClientContext& context) {
    v1::GetRoundRequest request;
    request.set_round(round);
    return client().stub().GetRound(&context, request, &answer);
  });
  ExpectRefused([&](grpc::ClientContext& context) {
    v1::ListRoundsResponse list;
    return client().stub().ListRounds(&context, {}, &list);
  });
  ExpectRefused([&](grpc::ClientContext& context) {
    v1::CloseRoundRequest request;
    request.set_round(round);
    return client().stub().CloseRound(&context, request, &answer);
  });
  ExpectRefused([&](grpc::ClientContext& context) {
    v1::CancelRoundRequest request;
    request.set_round(round);
    return client().stub().CancelRound(&context, request, &answer);
  });
  ExpectRefused([&](grpc::ClientContext& context) {
    v1::CreateRoundRequest request;
    request.set_round_id("other");
    *request.mutable_spec() = LargeSpec();
    return client().stub().CreateRound(&context, request, &answer);
  });
  all.Release();
  EXPECT_EQ(client().Get(round)->state(), v1::ROUND_STATE_OPEN);
  EXPECT_THAT(client().Get("rounds/other"), HasCode(Code::kNotFound));
}

TEST_F(AnswersTest, Small_NeedsNoRoom) {
  const std::string round = Create(SumSpec());
  const InFlightReservation all = TakeAll();
  EXPECT_THAT(client().Get(round), IsOk());
  v1::ListRoundsResponse list;
  grpc::ClientContext context;
  EXPECT_THAT(FromGrpc(client().stub().ListRounds(&context, {}, &list)), IsOk());
  EXPECT_EQ(list.rounds_size(), 1);
  EXPECT_THAT(client().Finish(round), IsOk());
}

TEST_F(AnswersTest, Wait_NoRoomAtTheEnd_WaitsForItsTurn) {
  const std::string round = Create(LargeSpec());
  absl::StatusOr<v1::Round> first = absl::UnknownError("");
  absl::StatusOr<v1::Round> second = absl::UnknownError("");
  std::thread first_waiter([&] { first = client().Wait(round, absl::Seconds(50)); });
  std::thread second_waiter([&] { second = client().Wait(round, absl::Seconds(50)); });
  while (server().context().waits.all().taken() != 2) std::this_thread::yield();
  InFlightReservation all = TakeAll();
  const auto kept = server().registry().Find(kDefaultTenant, "r");
  ASSERT_THAT(kept, IsOk());
  EXPECT_THAT((*kept)->Close(), IsOk());
  AwaitWaiting(2);
  all.Release();
  first_waiter.join();
  second_waiter.join();
  EXPECT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());
}

// A parsed tensor of nine bytes takes thirty times as much memory.
TEST_F(AnswersTest, CreateRound_WaitingForRoom_TakesItsMessageOnly) {
  options_.limits.memory_limit_bytes = uint64_t{1} << 30;
  v1::CreateRoundRequest request;
  for (int t = 0; t < 1000; ++t) {
    v1::TensorSpec* tensor = request.mutable_spec()->add_tensors();
    tensor->set_name(std::to_string(t));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->set_num_rows(1);
  }
  Create(SumSpec());
  const InFlightReservation all = TakeAll();
  struct Call {
    grpc::ClientContext context;
    v1::Round response;
    std::promise<grpc::Status> ended;
  };
  constexpr size_t kCalls = kSanitized ? 20 : 500;  // a call takes 20 ms there
  std::vector<Call> calls(kCalls);
  const uint64_t before = ResidentBytes();
  for (Call& call : calls) {
    client().stub().async()->CreateRound(&call.context, &request, &call.response,
                                         [&call](const grpc::Status& status) { call.ended.set_value(status); });
  }
  AwaitWaiting(kCalls);
  const uint64_t taken = ResidentBytes() - std::min(before, ResidentBytes());
  Advance(InFlightMemory::kBoundedWait);
  for (Call& call : calls) {
    EXPECT_THAT(FromGrpc(call.ended.get_future().get()), HasCode(Code::kResourceExhausted));
  }
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  EXPECT_LE(taken, uint64_t{64} << 20);
}

// A call whose client has cancelled it must not change anything.
TEST_F(AnswersTest, Large_ClientGivesUpInLine_NothingHappens) {
  const std::string round = Create(LargeSpec());
  const InFlightReservation all = TakeAll();
  grpc::ClientContext context;
  grpc::Status given_up;
  std::thread caller([&] {
    v1::CreateRoundRequest request;
    request.set_round_id("other");
    *request.mutable_spec() = LargeSpec();
    v1::Round answer;
    given_up = client().stub().CreateRound(&context, request, &answer);
  });
  AwaitWaiting(1);
  context.TryCancel();
  caller.join();
  EXPECT_THAT(FromGrpc(given_up), HasCode(Code::kCancelled));
  AwaitWaiting(0);
  EXPECT_THAT(client().Get("rounds/other"), HasCode(Code::kNotFound));
}

TEST_F(AnswersTest, Wait_ClientGivesUpInLine_LeavesIt) {
  const std::string round = Create(LargeSpec());
  grpc::ClientContext context;
  grpc::Status given_up;
  std::thread waiter([&] {
    v1::WaitRoundRequest request;
    request.set_round(round);
    v1::Round answer;
    given_up = client().stub().WaitRound(&context, request, &answer);
  });
  while (server().context().waits.all().taken() != 1) std::this_thread::yield();
  const InFlightReservation all = TakeAll();
  const auto kept = server().registry().Find(kDefaultTenant, "r");
  ASSERT_THAT(kept, IsOk());
  EXPECT_THAT((*kept)->Close(), IsOk());
  AwaitWaiting(1);
  context.TryCancel();
  waiter.join();
  EXPECT_THAT(FromGrpc(given_up), HasCode(Code::kCancelled));
  AwaitWaiting(0);
  while (server().context().waits.all().taken() != 0) std::this_thread::yield();
}

// The HTTP/2 window of the client is closed, so that the server cannot send the response.
TEST_F(AnswersTest, Large_NotRead_IsCountedAndGivenUpForOthers) {
  const std::string round = Create(LargeSpec());
  while (in_flight().reserved() != 0) std::this_thread::yield();
  v1::GetRoundRequest request;
  request.set_round(round);
  RawClient unread(server().grpc_address(), RawClient::kNoWindow);
  for (int i = 0; i < 100; ++i) unread.Call("GetRound", request);
  ASSERT_TRUE(unread.ok());
  while (in_flight().num_waiting() == 0) std::this_thread::yield();
  EXPECT_GE(in_flight().reserved(), in_flight().limit() / 2);
  std::atomic<bool> is_answered = false;
  std::thread reader([&] {
    // Its own answer is given up, too, if the clock is advanced before this thread has read it: then it asks again.
    while (!client().Wait(round, absl::ZeroDuration()).ok()) continue;
    is_answered = true;
  });
  while (!is_answered) {
    Advance(InFlightMemory::kReclaimAfter);
    clock_.AwaitDue(server().context().timer);
  }
  reader.join();
}

}  // namespace
}  // namespace sparseagg::service
