// Clients that read nothing, so that gRPC fills their connections.
#include <atomic>
#include <numeric>
#include <thread>

#include "tests/service/support/raw_client.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

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
  page.set_name(round);
  page.set_max_page_bytes(2 << 20);
  RawClient stuck(server().grpc_address(), RawClient::kWideWindow);
  // The answers of several calls exceed the buffers of any socket.
  constexpr uint64_t kStuckCalls = 8;
  for (uint64_t i = 0; i < kStuckCalls; ++i) stuck.Call("GetResult", page);
  ASSERT_TRUE(stuck.ok());
  while (in_flight.num_waiting() == 0) std::this_thread::yield();

  // Waits in the same queue, from the same address.
  v1::StreamResultRequest request;
  request.set_name(round);
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
