// Private aggregations from submissions to results.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "host/privacy/key_selection.h"
#include "host/privacy/lattice.h"
#include "tests/host/privacy/private_specs.h"

namespace sparseagg {
namespace {

using testing::GaussianKeys;
using testing::PrivateTensor;
using testing::PublicKeys;
using testing::Resolved;
using testing::UpdateOf;

struct Client {
  std::string id;
  std::vector<uint32_t> keys;
  std::vector<double> values;
};

privacy::NoiseSource Noise(const std::string& round = "r") { return {std::string(32, 'k'), "tenant", round}; }

Result Aggregate(const std::vector<TensorSpec>& specs, const std::vector<Client>& clients,
                 const privacy::NoiseSource& noise = Noise(), int threads = 2) {
  const auto engine = CreateCpuEngine({.num_threads = threads});
  auto aggregation = *Aggregation::Create(*engine, specs, 0, noise);
  for (const Client& client : clients) {
    auto prepared = aggregation->Prepare({UpdateOf(specs[0], client.keys, client.values)});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_TRUE(aggregation->Add(client.id, *std::move(prepared)).ok());
  }
  auto results = std::move(*aggregation).Finish();
  EXPECT_TRUE(results.ok()) << results.status();
  return std::move(results->front());
}

std::vector<double> ValuesOf(const Result& result) {
  const auto* const values = reinterpret_cast<const double*>(result.values.data());
  return {values, values + result.num_keys * result.row_width};
}

std::vector<uint64_t> KeysOf(const Result& result) {
  std::vector<uint64_t> keys;
  for (uint64_t row = 0; row < result.num_keys; ++row) keys.push_back(result.KeyAt(row));
  return keys;
}

std::vector<Client> Crowd(int num_clients, const std::vector<uint32_t>& keys) {
  std::vector<Client> clients;
  for (int i = 0; i < num_clients; ++i) {
    clients.push_back({"c" + std::to_string(i), keys, std::vector<double>(keys.size(), 0.01)});
  }
  return clients;
}

TEST(PrivateAggregation, EverySelection_KeepsPopularKeys_AndHidesThoseOfOneClient) {
  for (const KeySelection keys : {KeySelection::kWeightedGaussian, KeySelection::kCountGaussian}) {
    const PrivacySpec privacy = GaussianKeys(keys, 0.01, 1.0, 1e-9);
    const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, privacy, 1.0, 4);
    std::vector<Client> clients = Crowd(200, {1, 5, 999});
    clients.push_back({"z", {0, 2, 998}, {0.1, 0.1, 0.1}});
    const Result result = Aggregate(specs, clients);
    EXPECT_EQ(KeysOf(result), (std::vector<uint64_t>{1, 5, 999})) << Name(keys);
    for (const double value : ValuesOf(result)) EXPECT_NEAR(value, 2.0, 0.07) << Name(keys);
  }
}

TEST(PrivateAggregation, MinContributors_HidesKeysOfFewer_WhateverTheNoise) {
  TensorSpec tensor = PrivateTensor();
  tensor.aggregation.min_contributors = 50;
  const std::vector<TensorSpec> specs =
      Resolved({tensor}, GaussianKeys(KeySelection::kWeightedGaussian, 1.0, 0.1, 0.5), 1.0, 1);
  EXPECT_TRUE(KeysOf(Aggregate(specs, Crowd(49, {1}))).empty());
  EXPECT_EQ(KeysOf(Aggregate(specs, Crowd(60, {1}))), (std::vector<uint64_t>{1}));
}

// δ_s = 10⁻²: of many rounds with one client of exclusive keys, no more than that show any of the keys.
TEST(PrivateAggregation, ExclusiveKeys_AreShownWithDeltaAtMost) {
  const double delta = 1e-2;
  const std::vector<TensorSpec> specs =
      Resolved({PrivateTensor()}, GaussianKeys(KeySelection::kWeightedGaussian, 1.0, 0.5, delta), 1.0, 8);
  const int num_rounds = 4000;
  // Six deviations of a binomial distribution: α = 1e-9.
  const double most = num_rounds * delta + 6 * std::sqrt(num_rounds * delta * (1 - delta));
  const auto num_shown = [&](const Client& client) {
    int shown = 0;
    for (int round = 0; round < num_rounds; ++round) {
      shown += Aggregate(specs, {client}, Noise(std::to_string(round))).num_keys > 0 ? 1 : 0;
    }
    return shown;
  };
  EXPECT_LT(num_shown({"a", {1, 2, 3, 4, 5, 6, 7, 8}, std::vector<double>(8, 0.1)}), most);
  // The threshold is the least for one key.
  const int with_one_key = num_shown({"a", {1}, {0.1}});
  EXPECT_LT(with_one_key, most);
  EXPECT_GT(with_one_key, num_rounds * delta / 3);
}

TEST(PrivateAggregation, DenseLayoutOfSparseKeys_FillsTheOthers) {
  TensorSpec tensor = PrivateTensor("t", 1, 10);
  tensor.dtype = DType::kFloat64;
  tensor.aggregation.result_layout = ResultLayout::kDense;
  tensor.aggregation.fill = -7.0;
  const std::vector<TensorSpec> specs =
      Resolved({tensor}, GaussianKeys(KeySelection::kWeightedGaussian, 0x1p-10, 1.0, 1e-9), 1.0, 2);
  const std::vector<double> values = ValuesOf(Aggregate(specs, Crowd(200, {1, 5})));
  ASSERT_EQ(values.size(), 10u);
  for (size_t key = 0; key < 10; ++key) {
    if (key == 1 || key == 5) {
      EXPECT_NEAR(values[key], 2.0, 0.01);
    } else {
      EXPECT_EQ(values[key], -7.0);
    }
  }
}

TEST(PrivateAggregation, MergedAndRemovedSubmissions_GiveTheNoiseOfTheRest) {
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys());
  const auto engine = CreateCpuEngine({.num_threads = 1});
  const std::vector<Client> clients = {{"a", {7}, {0.25}}, {"b", {9}, {0.25}}, {"c", {7, 8}, {0.1, 0.2}}};
  const auto with = [&](const std::vector<Client>& some) {
    auto aggregation = *Aggregation::Create(*engine, specs, 0, Noise());
    aggregation->DeferMerges();  // Remove needs all submissions
    for (const Client& client : some) {
      EXPECT_TRUE(
          aggregation->Add(client.id, *aggregation->Prepare({UpdateOf(specs[0], client.keys, client.values)})).ok());
    }
    return aggregation;
  };
  const auto first = with({clients[2], clients[0]});
  ASSERT_TRUE(first->MergeFrom(std::move(*with({clients[1]}))).ok());
  const std::vector<uint32_t> removed = {1};  // "a"
  first->Remove(removed);
  EXPECT_EQ(ValuesOf(std::move(*first).Finish()->front()), ValuesOf(Aggregate(specs, {clients[1], clients[2]})));
}

}  // namespace
}  // namespace sparseagg
