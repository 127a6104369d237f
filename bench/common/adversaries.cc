#include "bench/common/adversaries.h"

#include <algorithm>
#include <functional>
#include <random>
#include <stdexcept>
#include <utility>

namespace sparseagg::bench {
namespace {

using Random = std::mt19937_64;
using Keys = std::vector<uint64_t>;

constexpr int kKeyBits = 30;
constexpr uint64_t kNumRows = uint64_t{1} << kKeyBits;
constexpr size_t kTuples = 100'000;

// About `count` distinct ascending keys.
Keys Uniform(Random& random, size_t count, uint64_t bound = kNumRows) {
  Keys keys(count);
  for (uint64_t& key : keys) key = random() % bound;
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

Keys Shuffled(Keys keys, Random& random) {
  std::shuffle(keys.begin(), keys.end(), random);
  return keys;
}

// Runs of 256 keys at random places.
Keys Clustered(Random& random, size_t count) {
  Keys keys;
  for (const uint64_t run : Uniform(random, count / 256, kNumRows / 256)) {
    for (uint64_t i = 0; i < 256; ++i) keys.push_back(run * 256 + i);
  }
  return keys;
}

uint64_t BitReversed(uint64_t key) {
  uint64_t reversed = 0;
  for (int bit = 0; bit < kKeyBits; ++bit) reversed |= (key >> bit & 1) << (kKeyBits - 1 - bit);
  return reversed;
}

// Makes the keys of client `c` of `clients`.
using Draw = std::function<Keys(Random& random, size_t c, size_t clients)>;

const std::vector<std::pair<std::string, Draw>>& Adversaries() {
  static const auto* const all = new std::vector<std::pair<std::string, Draw>>{
      {"uniform", [](Random& random, size_t, size_t) { return Uniform(random, kTuples); }},
      {"uniform, unsorted", [](Random& random, size_t, size_t) { return Shuffled(Uniform(random, kTuples), random); }},
      {"descending",
       [](Random& random, size_t, size_t) {
         Keys keys = Uniform(random, kTuples);
         std::reverse(keys.begin(), keys.end());
         return keys;
       }},
      {"bit-reversed",
       [](Random&, size_t c, size_t) {
         Keys keys(kTuples);
         for (size_t i = 0; i < kTuples; ++i) keys[i] = BitReversed(c * kTuples + i);
         return keys;
       }},
      {"clustered", [](Random& random, size_t, size_t) { return Clustered(random, kTuples); }},
      {"clustered, unsorted",
       [](Random& random, size_t, size_t) { return Shuffled(Clustered(random, kTuples), random); }},
      {"all equal", [](Random&, size_t, size_t) { return Keys(kTuples, 123'456'789); }},
      {"the same of every client",
       [](Random&, size_t, size_t) {
         Random same(1);
         return Uniform(same, kTuples);
       }},
      {"one client has everything",
       [](Random& random, size_t c, size_t clients) { return Uniform(random, c == 0 ? kTuples * clients : 1); }},
      {"one client has everything, unsorted",
       [](Random& random, size_t c, size_t clients) {
         return Shuffled(Uniform(random, c == 0 ? kTuples * clients : 1), random);
       }},
      // All other keys lie between two keys of the unsorted client, so blocks cannot be cut evenly.
      {"one unsorted client, the others in one place",
       [](Random& random, size_t c, size_t) {
         return c == 0 ? Shuffled(Uniform(random, kTuples), random) : Uniform(random, kTuples, 2 * kTuples);
       }},
  };
  return *all;
}

}  // namespace

std::vector<std::string> AdversaryNames() {
  std::vector<std::string> names;
  for (const auto& [name, draw] : Adversaries()) names.push_back(name);
  return names;
}

Workload MakeAdversary(const std::string& name, uint64_t seed, int scale) {
  const auto found = std::find_if(Adversaries().begin(), Adversaries().end(),
                                  [&](const auto& adversary) { return adversary.first == name; });
  if (found == Adversaries().end()) throw std::invalid_argument("no adversary '" + name + "'");
  Workload workload;
  workload.name = name;
  workload.description = name;
  workload.spec.name = "tensor";
  workload.spec.num_rows = kNumRows;
  Random random(seed);
  const auto clients = static_cast<size_t>(std::max(1, 100 / scale));
  for (size_t c = 0; c < clients; ++c) {
    const Keys keys = found->second(random, c, clients);
    ClientArrays client;
    client.narrow_keys.assign(keys.begin(), keys.end());
    client.values.resize(keys.size());
    for (float& value : client.values) value = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    workload.num_tuples += keys.size();
    workload.clients.push_back(std::move(client));
  }
  return workload;
}

}  // namespace sparseagg::bench
