// The sort of a block's tuples against std::stable_sort, for blocks of any width.
#include "host/cpu/merge/tuple_sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::cpu {
namespace {

using ::sparseagg::testing::Rng;
using ::sparseagg::testing::TestSeed;

// Payloads are put in descending order, so that no sort by whole words passes.
void ExpectSorted(TupleSort<uint64_t>& sort, uint64_t first, uint64_t last, const std::vector<uint64_t>& keys) {
  std::vector<std::pair<uint64_t, uint32_t>> expected;
  for (size_t i = 0; i < keys.size(); ++i) expected.emplace_back(keys[i], static_cast<uint32_t>(keys.size() - i));
  sort.Sort(first, last, keys.size(), /*ascending=*/false, [&](auto put) {
    for (const auto& [key, payload] : expected) put(key - first, payload);
  });
  std::stable_sort(expected.begin(), expected.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ASSERT_EQ(sort.words().size(), keys.size());
  if (keys.empty()) return;
  ASSERT_EQ(sort.RankedKeys() != nullptr, last - first > UINT32_MAX);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(sort.KeyOf(sort.words()[i]), expected[i].first) << "tuple " << i;
    if (sort.RankedKeys() == nullptr) continue;  // two equal keys of a narrow block may come in either order
    ASSERT_EQ(sort.words()[i].payload(), expected[i].second) << "tuple " << i;
    ASSERT_EQ(sort.RankedKeys()[sort.words()[i].offset()], expected[i].first);
  }
}

TEST(TupleSort, AnyKeys_AreSortedStably_WithRanksInWideBlocks) {
  const uint64_t seed = TestSeed(13);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  TupleSort<uint64_t> sort;  // one for all, as for the blocks of a merge
  for (const int bits : {20, 32, 33, 40, 64}) {
    const uint64_t last = ~uint64_t{0} >> (64 - bits);
    for (const size_t n : {0, 1, 2, 31, 600, 20'000}) {
      for (const uint64_t crowd : {last, last >> 8, last >> 31, uint64_t{1000}, uint64_t{0}}) {
        for (const bool in_pairs : {false, true}) {
          SCOPED_TRACE(::testing::Message() << bits << " bits, " << n << " keys among " << crowd);
          std::vector<uint64_t> keys(n);
          for (uint64_t& key : keys) key = (crowd == last ? 0 : last / 2) + rng.Below(crowd + 1);
          for (size_t i = 1; in_pairs && i < n; i += 2) keys[i] = keys[i - 1];
          ExpectSorted(sort, 0, last, keys);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::cpu
