// The bucket sort against std::stable_sort.
#include "host/cpu/merge/bucket_sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "host/base/column.h"
#include "host/cpu/simd/kernels.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::cpu {
namespace {

using ::sparseagg::testing::Rng;
using ::sparseagg::testing::TestSeed;

// Makes offset number i of n, up to `most`.
using MakeOffset = std::function<uint64_t(Rng& rng, uint64_t i, uint64_t n, uint64_t most)>;

const std::pair<const char*, MakeOffset> kDistributions[] = {
    {"uniform", [](Rng& rng, uint64_t, uint64_t, uint64_t most) { return rng.Below(most + 1); }},
    {"ascending", [](Rng&, uint64_t i, uint64_t n, uint64_t most) { return i * (most / n); }},
    {"descending", [](Rng&, uint64_t i, uint64_t n, uint64_t most) { return most - i * (most / n); }},
    {"all equal", [](Rng&, uint64_t, uint64_t, uint64_t most) { return most; }},
    {"each three times", [](Rng&, uint64_t i, uint64_t n, uint64_t most) { return i / 3 * (3 * most / (n + 3)); }},
    {"some often", [](Rng& rng, uint64_t, uint64_t,
                      uint64_t most) { return rng.OneIn(64) ? rng.Below(5) * (most / 5) : rng.Below(most + 1); }},
    {"one bucket overflows",
     [](Rng& rng, uint64_t, uint64_t, uint64_t most) {
       return rng.OneIn(128) ? rng.Below(most / 4096 + 1) : rng.Below(most + 1);
     }},
    {"one end", [](Rng& rng, uint64_t, uint64_t, uint64_t most) { return rng.Below(most / 16 + 1); }},
};

// Two equal offsets may come in either order.
void PutPairsInOrder(Column<TupleWord>& words) {
  for (size_t i = 0, end; i < words.size(); i = end) {
    for (end = i + 1; end < words.size() && words[end].offset() == words[i].offset(); ++end) continue;
    if (end - i == 2 && words[i].word > words[i + 1].word) std::swap(words[i], words[i + 1]);
  }
}

TEST(BucketSort, AnyOffsets_AreSorted_ThreeOrMoreEqualOnesStably) {
  if (!HasBucketKernel()) GTEST_SKIP() << "no 512-bit vectors";
  const uint64_t seed = TestSeed(12);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  BucketSort sort;  // one for all cases, so that each finds the state that the one before left
  Column<TupleWord> sorted;
  uint64_t tried = 0;
  for (const auto& [name, make_offset] : kDistributions) {
    for (const uint64_t n : {8, 100, 512, 513, 5000, 20000}) {
      for (const uint64_t most : {4 * n, 1000 * n, (uint64_t{1} << 31) - 1, (uint64_t{1} << 32) - 17}) {
        for (const bool ascending : {false, true}) {
          SCOPED_TRACE(std::string(name) + ", " + std::to_string(n) + " offsets up to " + std::to_string(most) +
                       (ascending ? ", ascending payloads" : ""));
          bool wanted = false;
          for (int i = 0; i < 64 && !wanted; ++i) wanted = sort.ShouldTry(most, n);  // past the blocks it skips
          if (!wanted) continue;
          ++tried;
          Column<TupleWord> words;
          BucketSort::Writer writer = sort.Begin(most, n);
          for (uint64_t i = 0; i < n; ++i) {
            const uint64_t offset = make_offset(rng, i, n, most);
            const auto payload = static_cast<uint32_t>(ascending ? i : rng.Bits());
            words.push_back(TupleWord::Make(offset, payload));
            writer.Put(offset, payload);
          }
          sort.Finish(ascending, sorted);
          std::stable_sort(words.begin(), words.end(),
                           [](TupleWord a, TupleWord b) { return a.offset() < b.offset(); });
          if (!ascending) {
            PutPairsInOrder(words);
            PutPairsInOrder(sorted);
          }
          ASSERT_TRUE(std::equal(sorted.begin(), sorted.end(), words.begin(), words.end(),
                                 [](TupleWord a, TupleWord b) { return a.word == b.word; }));
        }
      }
    }
  }
  EXPECT_GT(tried, 100u);
}

}  // namespace
}  // namespace sparseagg::cpu
