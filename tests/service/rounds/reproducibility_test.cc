// One hash per mode, whatever the order of arrival, the chunks, the clients at once and the threads.
#include <xxhash.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/service/support/server_fixture.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::service {
namespace {

constexpr int kNumClients = 24;
constexpr size_t kTuples = 300;

struct Update {
  std::string client;
  std::vector<uint32_t> keys;
  std::vector<float> values;  // row_width 2
  double weight;
};

// Few enough keys that most have many contributors, values whose float sums depend on their order, and duplicates.
std::vector<Update> MakeUpdates(std::mt19937_64& random) {
  std::vector<Update> updates;
  for (int c = 0; c < kNumClients; ++c) {
    Update update{absl::StrCat("client-", c), {}, {}, 0.25 + (random() % 1000) / 999.0};
    for (size_t i = 0; i < kTuples; ++i) {
      update.keys.push_back(random() % 500);
      for (int column = 0; column < 2; ++column) {
        const double unit = static_cast<double>(random() >> 11) * 0x1p-53 - 0.5;
        update.values.push_back(static_cast<float>(std::ldexp(unit, static_cast<int>(random() % 30) - 20)));
      }
    }
    updates.push_back(std::move(update));
  }
  return updates;
}

// The update in 1 to 5 chunks.
std::vector<v1::UpdateChunk> Split(const Update& update, const std::string& round, std::mt19937_64& random) {
  std::set<size_t> cuts = {0, kTuples};
  for (size_t i = random() % 5; i > 0; --i) cuts.insert(random() % kTuples);
  std::vector<v1::UpdateChunk> chunks;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const auto [begin, end] = std::pair(*cut, *std::next(cut));
    v1::UpdateChunk chunk =
        MakeChunk(round, update.client, {update.keys.begin() + begin, update.keys.begin() + end},
                  {update.values.begin() + 2 * begin, update.values.begin() + 2 * end}, chunks.size(), end == kTuples);
    if (random() % 2 == 0) {
      chunk.mutable_slices(0)->set_key_encoding(v1::KEY_ENCODING_U64);
      chunk.mutable_slices(0)->set_keys(
          Packed(std::vector<uint64_t>(update.keys.begin() + begin, update.keys.begin() + end)));
    }
    if (chunks.empty()) chunk.set_weight(update.weight);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

v1::RoundSpec SpecOf(v1::Numerics numerics) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_tensors(0)->set_row_width(2);
  v1::AggregationSpec* aggregation = spec.mutable_aggregation();
  aggregation->set_op(v1::OP_COORDINATE_MEAN);
  aggregation->set_weighting(v1::WEIGHTING_BY_WEIGHT);
  aggregation->set_return_counts(true);
  aggregation->set_return_weights(true);
  aggregation->set_numerics(numerics);
  spec.set_max_submissions(kNumClients);
  if (numerics == v1::NUMERICS_FIXED_POINT) {
    aggregation->set_value_bound(1e6);
    aggregation->set_weight_bound(2.0);
  }
  return spec;
}

class ReproducibilityTest : public ServerFixture, public ::testing::WithParamInterface<v1::Numerics> {
 protected:
  // Submits all updates in a random order, by `num_clients` connections at once; the hash of the result.
  uint64_t Run(Server& target, const std::vector<Update>& updates, int num_clients, uint64_t seed) {
    std::mt19937_64 random(seed);
    Client coordinator(target.grpc_address());
    const auto round = coordinator.Create(SpecOf(GetParam()), absl::StrCat("r", seed, "-", num_clients));
    EXPECT_THAT(round, IsOk());
    std::vector<size_t> order(updates.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<v1::UpdateChunk>> submissions;
    for (const size_t index : order) submissions.push_back(Split(updates[index], round->name(), random));
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < num_clients; ++t) {
      threads.emplace_back([&] {
        Client own(target.grpc_address());
        for (size_t i = next++; i < submissions.size(); i = next++) {
          EXPECT_THAT(i % 3 == 0 ? own.SubmitUnary(submissions[i]) : own.SubmitStream(submissions[i]), IsOk());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto done = coordinator.Wait(round->name(), absl::Seconds(60));  // closed by the last submission
    EXPECT_THAT(done, IsOk());
    EXPECT_EQ(done->state(), v1::ROUND_STATE_DONE) << done->state_reason();
    const std::string bytes = coordinator.ResultBytes(round->name());
    EXPECT_GT(bytes.size(), 1000);
    return XXH3_64bits(bytes.data(), bytes.size());
  }
};

TEST_P(ReproducibilityTest, SameUpdates_20OrdersClientsAndThreads_OneHash) {
  const uint64_t seed = testing::TestSeed(20261121);
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const std::vector<Update> updates = MakeUpdates(random);
  std::map<uint64_t, int> hashes;
  for (const int threads : {1, 2}) {
    ServerOptions options = options_;
    options.num_threads = threads;
    const auto target = Server::Start(options, CreateCpuEngine({threads}));
    ASSERT_THAT(target, IsOk());
    for (int order = 0; order < 20; ++order) {
      for (const int clients : {1, 8}) ++hashes[Run(**target, updates, clients, seed + order)];
    }
  }
  for (const auto& [hash, times] : hashes) {
    std::cout << v1::Numerics_Name(GetParam()) << absl::StreamFormat(" hash %016x in %d rounds\n", hash, times);
  }
  EXPECT_EQ(hashes.size(), 1);
}

INSTANTIATE_TEST_SUITE_P(Modes, ReproducibilityTest,
                         ::testing::Values(v1::NUMERICS_CANONICAL, v1::NUMERICS_FIXED_POINT),
                         [](const auto& test) { return v1::Numerics_Name(test.param); });

}  // namespace
}  // namespace sparseagg::service
