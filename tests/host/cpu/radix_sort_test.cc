// The radix sort against std::stable_sort.
#include "host/cpu/prepare/radix_sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/column.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::cpu {
namespace {

using ::sparseagg::testing::Rng;
using ::sparseagg::testing::TestSeed;

struct Entry {
  uint64_t key;
  uint32_t position;
};

// Makes key number i of n, of at most `bits` bits.
using MakeKey = std::function<uint64_t(Rng& rng, uint64_t i, uint64_t n, int bits)>;

uint64_t Mask(int bits) { return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

const std::pair<const char*, MakeKey> kDistributions[] = {
    {"uniform", [](Rng& rng, uint64_t, uint64_t, int bits) { return rng.Bits() & Mask(bits); }},
    {"all equal", [](Rng&, uint64_t, uint64_t, int bits) { return Mask(bits); }},
    {"ascending", [](Rng&, uint64_t i, uint64_t, int bits) { return i & Mask(bits); }},
    {"descending", [](Rng&, uint64_t i, uint64_t n, int bits) { return (n - i) & Mask(bits); }},
    // All leading bits are equal, so sorting by them alone fails.
    {"low bits only", [](Rng& rng, uint64_t, uint64_t, int bits) { return rng.Bits() & Mask(bits / 2); }},
    {"two clusters",
     [](Rng& rng, uint64_t, uint64_t, int bits) {
       return (rng.Bits() & Mask(bits / 3)) | (rng.Coin() ? 0 : Mask(bits) ^ Mask(bits - 1));
     }},
    {"one outlier",
     [](Rng& rng, uint64_t i, uint64_t, int bits) { return i == 17 ? Mask(bits) : rng.Bits() & Mask(bits / 4); }},
};

TEST(RadixSort, AnyKeys_SortStably) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  Column<Entry> scratch;
  for (const auto& [name, make_key] : kDistributions) {
    for (const uint64_t n : {0, 1, 2, 255, 256, 257, 5000, 70000}) {
      for (const int bits : {1, 11, 12, 22, 23, 40, 64}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(n) + " of " + std::to_string(bits) + " bits");
        Column<Entry> entries;
        for (uint64_t i = 0; i < n; ++i) {
          entries.push_back({make_key(rng, i, n, bits), static_cast<uint32_t>(i)});
        }
        std::vector<Entry> expected(entries.begin(), entries.end());
        std::stable_sort(expected.begin(), expected.end(),
                         [](const Entry& a, const Entry& b) { return a.key < b.key; });
        StableSortByKey(entries, scratch, bits, [](const Entry& entry) { return entry.key; });
        ASSERT_TRUE(
            std::equal(entries.begin(), entries.end(), expected.begin(), expected.end(),
                       [](const Entry& a, const Entry& b) { return a.key == b.key && a.position == b.position; }));
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::cpu
