// Borrowed keys that change after their update was validated: the merge refuses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

struct Client {
  std::vector<uint64_t> keys;
  std::string values;
};

class ChangedKeysTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

TensorSpec SpecOf(DType dtype, Op op, uint64_t dimension, uint32_t width = 1) {
  TensorSpec spec;
  spec.name = "v";
  spec.dtype = dtype;
  spec.dimension = dimension;
  spec.width = width;
  spec.aggregation.op = op;
  return spec;
}

// Every fold, and each way of reading keys: tables with and without kernels, collected tuples and rows, merges on
// arrival, results at their keys.
std::vector<TensorSpec> SpecsOf(uint64_t dimension) {
  std::vector<TensorSpec> specs = {
      SpecOf(DType::kFloat32, Op::kSum, dimension),    SpecOf(DType::kFloat16, Op::kMean, dimension),
      SpecOf(DType::kFloat32, Op::kSum, dimension, 5), SpecOf(DType::kInt32, Op::kMin, dimension),
      SpecOf(DType::kInt64, Op::kSum, dimension, 2),   SpecOf(DType::kFloat32, Op::kUnion, dimension),
      SpecOf(DType::kFloat32, Op::kSum, dimension),    SpecOf(DType::kFloat32, Op::kCoordinateMean, dimension)};
  specs[6].aggregation.numerics = Numerics::kFixedPoint;
  specs[6].aggregation.value_bound = 100;
  specs[6].aggregation.max_submissions = 100;
  specs[7].aggregation.return_counts = true;
  if (dimension > 0 && dimension <= 1'000'000) {
    specs.push_back(SpecOf(DType::kFloat32, Op::kSum, dimension));
    specs.back().aggregation.result_layout = ResultLayout::kDense;
  }
  return specs;
}

Client MakeClient(const TensorSpec& spec, Rng& rng, size_t size) {
  std::set<uint64_t> keys;
  while (keys.size() < size) keys.insert(rng.Below(spec.dimension == 0 ? uint64_t{1} << 50 : spec.dimension));
  Client client;
  client.keys.assign(keys.begin(), keys.end());
  if (spec.aggregation.op == Op::kUnion) return client;
  std::vector<double> values(client.keys.size() * spec.width);
  for (double& value : values) value = static_cast<double>(rng.Between(-50, 50));
  client.values = Pack(spec.dtype, values);
  return client;
}

// Keys as an engine reads them.
struct Keys {
  std::vector<uint32_t> narrow;
  std::vector<uint64_t> wide;
};

Keys KeysFor(const TensorSpec& spec, const std::vector<uint64_t>& keys) {
  if (!HasNarrowKeys(spec)) return {{}, keys};
  return {std::vector<uint32_t>(keys.begin(), keys.end()), {}};
}

// `changed`: what the keys become once all updates have been prepared.
absl::StatusOr<Result> Merge(const TensorSpec& spec, const std::vector<Client>& clients, int threads,
                             const std::vector<Client>& changed) {
  const std::unique_ptr<Engine> engine = CreateCpuEngine({threads});
  auto accumulator = engine->CreateAccumulator(spec);
  EXPECT_TRUE(accumulator.ok()) << accumulator.status();
  std::vector<Keys> keys(clients.size());
  std::vector<std::unique_ptr<PreparedUpdate>> prepared;
  for (size_t c = 0; c < clients.size(); ++c) {
    keys[c] = KeysFor(spec, clients[c].keys);
    UpdateColumns columns;
    if (HasNarrowKeys(spec)) {
      columns.keys = absl::MakeConstSpan(keys[c].narrow);
    } else {
      columns.keys = absl::MakeConstSpan(keys[c].wide);
    }
    if (!clients[c].values.empty()) columns.values = reinterpret_cast<const std::byte*>(clients[c].values.data());
    auto update = ValidatedUpdate::Create(spec, columns, 1.0);
    EXPECT_TRUE(update.ok()) << update.status();
    auto one = (*accumulator)->Prepare(*std::move(update));
    EXPECT_TRUE(one.ok()) << one.status();
    prepared.push_back(*std::move(one));
  }
  for (size_t c = 0; c < clients.size(); ++c) {
    const Keys now = KeysFor(spec, changed[c].keys);
    std::copy(now.narrow.begin(), now.narrow.end(), keys[c].narrow.begin());
    std::copy(now.wide.begin(), now.wide.end(), keys[c].wide.begin());
  }
  for (auto& update : prepared) {
    const absl::Status added = (*accumulator)->Add(std::move(update));
    if (!added.ok()) return added;
  }
  std::vector<uint32_t> order(clients.size());
  std::iota(order.begin(), order.end(), 0);
  return std::move(**accumulator).Finish(order);
}

constexpr uint64_t kDimensions[] = {1'000, 100'000, uint64_t{1} << 31, uint64_t{1} << 40, 0};

// Makes keys wrong, but none of the first or last `margin` of them.
void Spoil(const TensorSpec& spec, size_t margin, Rng& rng, std::vector<uint64_t>& keys) {
  const size_t at = margin + rng.Below(keys.size() - 2 * margin);
  const uint64_t beyond = spec.dimension == 0 ? ~uint64_t{0} : spec.dimension + rng.Below(1'000'000);
  switch (rng.Below(10)) {
    case 0:
      return std::swap(keys[at], keys[at - 1]);
    case 1:
      keys[at] = keys[at - 1];
      return;
    case 2:
      return std::swap(keys[margin], keys[keys.size() - margin - 1]);
    case 3:
      keys[at] = HasNarrowKeys(spec) ? std::min<uint64_t>(beyond, UINT32_MAX) : beyond;
      return;
    case 4:
      return std::reverse(keys.begin() + static_cast<ptrdiff_t>(margin), keys.end() - static_cast<ptrdiff_t>(margin));
    case 5:
      keys[at] = 0;
      return;
    case 6:  // two lists that ascend, one behind the other
      std::rotate(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(at), keys.end());
      return;
    case 7:
      std::iota(keys.end() - static_cast<ptrdiff_t>(margin), keys.end(), uint64_t{0});
      return;
    case 8:
      std::iota(keys.end() - static_cast<ptrdiff_t>(margin), keys.end(), keys[at]);
      return;
    default:
      keys[at] = keys.back();
  }
}

bool AreGood(const TensorSpec& spec, const std::vector<uint64_t>& keys) {
  return std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) == keys.end() &&
         (spec.dimension == 0 || keys.back() < spec.dimension);
}

// Merges `clients` whose keys become those of `spoilt` after all updates have been prepared.
void ExpectRefused(const TensorSpec& spec, const std::vector<Client>& clients, const std::vector<Client>& spoilt,
                   int threads) {
  const auto result = Merge(spec, clients, threads, spoilt);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition)
      << "dimension " << spec.dimension << ", width " << spec.width << ", op " << static_cast<int>(spec.aggregation.op);
  EXPECT_EQ(result.status().message(),
            "tensor 'v': the keys of an update have been changed since it was added; add a copy of them");
}

void ExpectSpoiltRefused(const TensorSpec& spec, int threads, Rng& rng) {
  std::vector<Client> clients;
  for (const size_t size : {300, 600, 100, 50}) clients.push_back(MakeClient(spec, rng, size));
  std::vector<Client> spoilt = clients;
  std::vector<uint64_t>& keys = spoilt[rng.Below(clients.size())].keys;
  Spoil(spec, 1, rng, keys);
  if (AreGood(spec, keys)) return;
  SCOPED_TRACE(::testing::PrintToString(keys));
  ExpectRefused(spec, clients, spoilt, threads);
}

TEST_P(ChangedKeysTest, KeysThatDoNot_AreRefused) {
  const uint64_t seed = TestSeed(32);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const uint64_t dimension : kDimensions) {
    for (const TensorSpec& spec : SpecsOf(dimension)) {
      for (int trial = 0; trial < 12; ++trial) ExpectSpoiltRefused(spec, 1 + trial % 2, rng);
    }
  }
}

// A table of several windows, each of which goes on where the last one stopped.
TEST_P(ChangedKeysTest, KeysThatDoNot_AreRefused_WhereTablesHaveManyWindows) {
  const uint64_t seed = TestSeed(33);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const TensorSpec spec = SpecOf(DType::kFloat32, Op::kSum, 200'000);
  const std::vector<Client> clients = {MakeClient(spec, rng, 100'000), MakeClient(spec, rng, 100'000)};
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<Client> spoilt = clients;
    std::vector<uint64_t>& keys = spoilt[rng.Below(2)].keys;
    const size_t at = 1 + rng.Below(keys.size() - 1);
    std::swap(keys[at], keys[at - 1 - rng.Below(std::min<size_t>(at, 40))]);
    EXPECT_EQ(Merge(spec, clients, 1 + trial % 2, spoilt).status().code(), absl::StatusCode::kFailedPrecondition)
        << "position " << at;
  }
}

// Blocks begin at keys that were sampled, and end with the last one: neither tells where to write.
TEST_P(ChangedKeysTest, KeysThatDoNot_AreRefused_WhereBlocksAreCutAtSamples) {
  const uint64_t seed = TestSeed(34);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const uint64_t dimension : {uint64_t{1'000'000}, uint64_t{1} << 31, uint64_t{1} << 40}) {
    for (const TensorSpec& spec : SpecsOf(dimension)) {
      Client client;
      client.keys.resize(200'000);
      const uint64_t step = (dimension - 1) / client.keys.size();
      for (size_t i = 0; i < client.keys.size(); ++i) client.keys[i] = i * step + rng.Below(step);
      client.values.resize(client.keys.size() * spec.width * SizeOf(spec.dtype));
      if (spec.aggregation.op == Op::kUnion) client.values.clear();
      for (int trial = 0; trial < 8; ++trial) {
        Client spoilt = client;
        if (trial == 0) {
          spoilt.keys.back() = 0;
        } else if (trial == 1) {  // the second half of them
          for (size_t i = 100'000; i < 199'980; ++i) spoilt.keys[i] += spec.dimension;
          if (HasNarrowKeys(spec) && spoilt.keys[199'979] > UINT32_MAX) continue;
        } else {
          Spoil(spec, 17, rng, spoilt.keys);
        }
        if (AreGood(spec, spoilt.keys)) continue;
        SCOPED_TRACE("trial " + std::to_string(trial));
        ExpectRefused(spec, {client, client}, {spoilt, client}, 1 + trial / 2 % 2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ChangedKeysTest, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const ::testing::TestParamInfo<std::string>& target) { return target.param; });

}  // namespace
}  // namespace sparseagg::testing
