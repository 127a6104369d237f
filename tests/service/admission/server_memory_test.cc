// The memory of a server process in a large round: its updates and little more.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <random>
#include <thread>

#include "tests/service/support/server_fixture.h"
#include "tests/service/support/server_process.h"
#include "tests/support/sanitized.h"

namespace sparseagg::service {
namespace {

using testing::kSanitized;

TEST(ServerMemoryTest, Round_1000ClientsOf10000Tuples_TakesItsUpdatesAnd256MiB) {
  constexpr int kClients = kSanitized ? 100 : 1000;
  constexpr size_t kTuplesOfEach = 10'000;
  constexpr uint64_t kUpdateBytes = uint64_t{kClients} * kTuplesOfEach * 8;
  ServerProcess server;
  Client coordinator(server.address());
  const auto round = coordinator.Create(SumSpec(10'000'000), "large");
  ASSERT_THAT(round, IsOk());
  const uint64_t baseline = server.PeakBytes();
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      Client client(server.address());
      for (int c = next++; c < kClients; c = next++) {
        std::mt19937_64 random(c);
        std::vector<uint32_t> keys(kTuplesOfEach);
        for (uint32_t& key : keys) key = random() % 10'000'000;
        std::vector<float> values(kTuplesOfEach, 1.0f);
        EXPECT_THAT(client.SubmitStream({MakeChunk(round->name(), std::to_string(c), keys, values)}), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto done = coordinator.Finish(round->name());
  ASSERT_THAT(done, IsOk());
  ASSERT_EQ(done->state(), v1::ROUND_STATE_DONE) << done->state_reason();
  EXPECT_EQ(done->num_tuples(), kClients * kTuplesOfEach);
  const uint64_t peak = server.PeakBytes();
  std::cout << "baseline " << (baseline >> 20) << " MiB, updates " << (kUpdateBytes >> 20) << " MiB, peak "
            << (peak >> 20) << " MiB: " << ((peak - baseline - std::min(peak - baseline, kUpdateBytes)) >> 20)
            << " MiB more\n";
  v1::StreamResultRequest request;
  request.set_name(round->name());
  const auto pages = coordinator.Stream(request);
  ASSERT_THAT(pages, IsOk());
  double sum = 0;
  for (const v1::ResultPage& page : *pages) {
    for (const float value : Unpacked<float>(page.slice().values())) sum += value;
  }
  EXPECT_EQ(sum, static_cast<double>(kClients * kTuplesOfEach));
  const uint64_t after_reading = server.PeakBytes();
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  EXPECT_LE(after_reading, baseline + kUpdateBytes + (uint64_t{256} << 20));
}

}  // namespace
}  // namespace sparseagg::service
