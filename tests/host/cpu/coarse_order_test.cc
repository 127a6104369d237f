// The coarse order of unsorted updates (host/cpu/prepare/coarse_order.h), and the inputs that it refuses.
#include "host/cpu/prepare/coarse_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "host/cpu/cpu_engine.h"
#include "host/cpu/prepare/cpu_update.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace sparseagg::testing {
namespace {

constexpr size_t kTuples = 20'000;

// Distinct keys below `num_rows` in random order.
std::vector<uint64_t> DistinctKeys(Rng& rng, uint64_t num_rows, size_t count) {
  std::set<uint64_t> keys;
  while (keys.size() < count) keys.insert(rng.Below(num_rows));
  std::vector<uint64_t> shuffled(keys.begin(), keys.end());
  rng.Shuffle(shuffled);
  return shuffled;
}

template <typename Key>
struct Ordered {
  bool done = false;
  cpu::TupleColumns<Key> tuples;
  cpu::TupleColumns<Key> repeats;
};

// Orders keys; the bytes of a key's row say its position.
template <typename Key>
Ordered<Key> Order(const std::vector<uint64_t>& wide_keys, uint64_t num_rows, size_t row_bytes) {
  const std::vector<Key> keys(wide_keys.begin(), wide_keys.end());
  std::vector<std::byte> values(keys.size() * row_bytes);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i / row_bytes * 31 + i % row_bytes);
  Ordered<Key> out;
  out.done =
      cpu::OrderCoarsely<Key>(keys, values.data(), row_bytes, cpu::CoarseBits(num_rows), out.tuples, out.repeats);
  return out;
}

// Tuples with repeated keys go to the repeats; some others may, too, but few. Both are in stable order.
template <typename Key>
void ExpectOrdered(const std::vector<uint64_t>& keys, uint64_t num_rows, size_t row_bytes) {
  const Ordered<Key> got = Order<Key>(keys, num_rows, row_bytes);
  ASSERT_TRUE(got.done);
  const int low_bits = cpu::CoarseBits(num_rows);
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return keys[a] >> low_bits < keys[b] >> low_bits; });
  std::map<uint64_t, size_t> times;
  for (const uint64_t key : keys) ++times[key];
  const std::set<uint64_t> out(got.repeats.keys.begin(), got.repeats.keys.end());
  size_t num_tuples = 0;
  size_t num_repeats = 0;
  for (const size_t i : order) {
    const bool is_out = out.contains(keys[i]);
    ASSERT_TRUE(is_out || times[keys[i]] == 1) << keys[i];
    const cpu::TupleColumns<Key>& tuples = is_out ? got.repeats : got.tuples;
    const size_t at = is_out ? num_repeats++ : num_tuples++;
    ASSERT_LT(at, tuples.keys.size());
    ASSERT_EQ(tuples.keys[at], keys[i]);
    for (size_t b = 0; b < row_bytes; ++b) {
      ASSERT_EQ(tuples.values[at * row_bytes + b], static_cast<std::byte>(i * 31 + b)) << i;
    }
  }
  EXPECT_EQ(got.tuples.keys.size(), num_tuples);
  EXPECT_EQ(got.tuples.values.size(), num_tuples * row_bytes);
  EXPECT_EQ(got.repeats.keys.size(), num_repeats);
  EXPECT_LE(num_repeats, 2 * (keys.size() - times.size()) + keys.size() / 50);
}

TEST(CoarseOrder, Order_IsStableByLeadingBits_ForEveryRowSize) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const size_t row_bytes : {0u, 2u, 4u, 8u, 20u}) {
    SCOPED_TRACE(row_bytes);
    ExpectOrdered<uint64_t>(DistinctKeys(rng, uint64_t{1} << 40, kTuples), uint64_t{1} << 40, row_bytes);
    ExpectOrdered<uint64_t>(DistinctKeys(rng, ~uint64_t{0}, kTuples), 0, row_bytes);
    ExpectOrdered<uint32_t>(DistinctKeys(rng, 3'000'000'000, kTuples), 3'000'000'000, row_bytes);
    ExpectOrdered<uint32_t>(DistinctKeys(rng, 30'000, kTuples), 30'000, row_bytes);
  }
}

// `count` keys below `bound`, of which some are made equal to others.
std::vector<uint64_t> KeysWithRepeats(Rng& rng, uint64_t bound, size_t num_repeats) {
  std::vector<uint64_t> keys = DistinctKeys(rng, bound, kTuples);
  for (size_t i = 0; i < num_repeats; ++i) keys[rng.Below(kTuples)] = keys[rng.Below(kTuples)];
  return keys;
}

TEST(CoarseOrder, RepeatedKeys_AreTakenOut) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const uint64_t num_rows : {uint64_t{30'000}, uint64_t{1} << 27, uint64_t{1} << 40, uint64_t{0}}) {
    const uint64_t bound = num_rows == 0 ? ~uint64_t{0} : num_rows;
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE(::testing::Message() << "num_rows " << num_rows << ", case " << i);
      std::vector<uint64_t> keys = KeysWithRepeats(rng, bound, i < 10 ? 1 : 100);
      // Keys of all buckets, or crowded in two buckets.
      if (num_rows != 30'000 && i % 2 == 1) {
        for (uint64_t& key : keys) key = key % 2 * (bound / 2) + key % std::min<uint64_t>(bound / 2, 100'000'007);
      }
      ExpectOrdered<uint64_t>(keys, num_rows, i % 3 * 4);
      if (HasFailure()) return;
    }
  }
}

void ExpectTheReferencesResult(const TensorSpec& spec, const std::vector<RawSubmission>& submissions) {
  const Verdict verdict = Judge({spec}, submissions);
  for (const int threads : {1, 2}) {
    const auto engine = CreateCpuEngine({threads});
    EXPECT_EQ(Disagreement({spec}, Drive(*engine, {spec}, submissions), verdict), "") << threads;
  }
}

// One update in coarse order; the keys of all others lie in one of its buckets, which is more than a block should hold.
TEST(CoarseOrder, CrowdedBuckets_GiveTheSameResult) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = uint64_t{1} << 40;
  spec.aggregation.return_counts = true;
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < 40; ++k) {
    RawTensor raw;
    raw.keys = k == 7 ? DistinctKeys(rng, spec.num_rows, kTuples)
                      : RandomKeys(rng, 1'000'000, 40'000, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
    submissions.push_back({"client " + std::to_string(k), 1.0, {std::move(raw)}});
  }
  ExpectTheReferencesResult(spec, submissions);
}

// The largest num_rows whose tuples take two units.
constexpr uint64_t kWordNumRows = uint64_t{1} << (32 + cpu::internal::kBucketBits);

// A round reserves memory_bytes() of a prepared update. A merge that unpacks it must not exceed that.
TEST(CoarseWords, UnpackedUpdate_TakesNoMoreMemoryThanItReported) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const uint64_t num_rows : {uint64_t{1} << 24, kWordNumRows, kWordNumRows + 1}) {
    TensorSpec spec;
    spec.name = "t";
    spec.num_rows = num_rows;
    RawTensor raw;
    raw.keys = DistinctKeys(rng, spec.num_rows, kTuples);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
    auto updates = BuildUpdates({spec}, {"client", 1.0, {std::move(raw)}});
    ASSERT_TRUE(updates.ok()) << updates.status();
    const auto engine = CreateCpuEngine({1});
    const auto accumulator = engine->CreateAccumulator(spec);
    const auto prepared = (*accumulator)->Prepare(std::move((*updates)[0]));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    auto& update = dynamic_cast<cpu::CpuUpdate&>(**prepared);
    EXPECT_NE(update.words, nullptr);
    const size_t said = update.memory_bytes();
    cpu::Unpack(update);
    EXPECT_EQ(update.words, nullptr);
    EXPECT_LE(update.memory_bytes(), said);
  }
}

TEST(CoarseOrder, KeysInCoarseOrder_AreFound) {
  const auto is = [](std::vector<uint64_t> keys, int bits) { return cpu::IsCoarseAndUnique<uint64_t>(keys, bits); };
  EXPECT_TRUE(is({9, 8, 15, 17, 16, 40}, 3));
  EXPECT_TRUE(is({}, 3));
  EXPECT_TRUE(is({~uint64_t{0}}, 54));
  EXPECT_FALSE(is({9, 8, 7}, 3)) << "the bucket before";
  EXPECT_FALSE(is({9, 8, 16, 9}, 3)) << "back again";
  EXPECT_FALSE(is({9, 8, 9, 16}, 3)) << "repeated";
  EXPECT_FALSE(is({1, 9, 8, 16, 17, 16}, 3)) << "repeated in the last bucket";
}

// As a reducer of a cluster gets it: it is neither sorted nor copied.
TEST(CoarseOrder, UpdateInCoarseOrder_StaysWhereItIs) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const uint64_t num_rows : {uint64_t{1} << 24, uint64_t{1} << 40, uint64_t{0}}) {
    for (const uint32_t width : {1u, 3u}) {
      for (const bool is_repeated : {false, true}) {
        TensorSpec spec;
        spec.name = "t";
        spec.num_rows = num_rows;
        spec.row_width = width;
        const int bits = cpu::CoarseBits(num_rows);
        std::vector<RawSubmission> submissions;
        for (const char* const id : {"b", "a", "c"}) {
          std::vector<uint64_t> keys = DistinctKeys(rng, num_rows == 0 ? ~uint64_t{0} : num_rows, kTuples);
          std::stable_sort(keys.begin(), keys.end(), [&](uint64_t a, uint64_t b) { return a >> bits < b >> bits; });
          if (is_repeated) keys[kTuples / 2 + 1] = keys[kTuples / 2];
          RawTensor raw;
          raw.values = RandomValues(rng, spec.dtype, kTuples * width, ValueStyle::kUnit);
          raw.keys = std::move(keys);
          submissions.push_back({id, 1.0, {std::move(raw)}});
        }
        auto updates = BuildUpdates({spec}, submissions[0]);
        ASSERT_TRUE(updates.ok()) << updates.status();
        const std::byte* const values = (*updates)[0].values();
        const auto engine = CreateCpuEngine({1});
        const auto accumulator = engine->CreateAccumulator(spec);
        const auto prepared = (*accumulator)->Prepare(std::move((*updates)[0]));
        ASSERT_TRUE(prepared.ok()) << prepared.status();
        const auto& update = dynamic_cast<const cpu::CpuUpdate&>(**prepared);
        EXPECT_EQ(update.values == values, !is_repeated || update.unfolded != nullptr);
        EXPECT_EQ(update.coarse_bits == bits && update.repeats == nullptr && update.unfolded == nullptr, !is_repeated);
        ExpectTheReferencesResult(spec, submissions);
      }
    }
  }
}

// Packed updates among others: sorted, small, with repeated keys, with dense keys.
TEST(CoarseWords, AmongOtherUpdates_GiveTheSameResult) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  enum class Others { kNone, kSorted, kFew, kRepeated, kDense };
  const std::pair<Op, uint64_t> cases[] = {{Op::kSum, uint64_t{1} << 17},
                                           {Op::kSum, uint64_t{1} << 50},
                                           {Op::kMean, uint64_t{1} << 31},
                                           {Op::kCoordinateMean, kWordNumRows},
                                           {Op::kMax, kWordNumRows}};
  for (const Others others : {Others::kNone, Others::kSorted, Others::kFew, Others::kRepeated, Others::kDense}) {
    for (const auto& [op, num_rows] : cases) {
      const std::vector<uint64_t> shared = DistinctKeys(rng, num_rows, 3000);
      SCOPED_TRACE(::testing::Message() << "others " << static_cast<int>(others) << ", op " << static_cast<int>(op)
                                        << ", rows " << num_rows);
      TensorSpec spec;
      spec.name = "t";
      spec.num_rows = num_rows;
      spec.aggregation.op = op;
      spec.aggregation.return_counts = op == Op::kMean;
      std::vector<RawSubmission> submissions;
      for (size_t k = 0; k < 9; ++k) {
        RawTensor raw;
        raw.keys = DistinctKeys(rng, spec.num_rows, kTuples);
        std::copy(shared.begin(), shared.end(), raw.keys.begin());  // of every client
        std::sort(raw.keys.begin(), raw.keys.end());
        raw.keys.erase(std::unique(raw.keys.begin(), raw.keys.end()), raw.keys.end());
        rng.Shuffle(raw.keys);
        if (k % 3 == 1) {
          if (others == Others::kSorted) std::sort(raw.keys.begin(), raw.keys.end());
          if (others == Others::kFew) raw.keys.resize(100);
          if (others == Others::kRepeated) raw.keys[3] = raw.keys[1000];
          if (others == Others::kDense) {
            std::iota(raw.keys.begin(), raw.keys.end(), num_rows / 2);
            std::swap(raw.keys[3], raw.keys[1000]);
          }
        }
        raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kUnit);
        submissions.push_back({"client " + std::to_string(k), 1.0, {std::move(raw)}});
      }
      ExpectTheReferencesResult(spec, submissions);
    }
  }
}

// Adversarial keys: all in one bucket, with colliding hashes.
TEST(RepeatFinder, AdversarialKeys_AreNotComparedPairwise) {
  constexpr int kLowBits = 22;
  constexpr size_t kCount = 8000;
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; keys.size() < kCount; ++key) {
    ASSERT_LT(key, uint64_t{1} << kLowBits);
    if (key * 0x9e3779b97f4a7c15u >> (64 - 17) < 256) keys.push_back(key);  // as HasHashTwice hashes so many
  }
  Rng rng(TestSeed(12));
  rng.Shuffle(keys);
  for (const bool repeats : {false, true}) {
    if (repeats) keys.back() = keys.front();
    uint64_t num_reads = 0;
    cpu::internal::RepeatFinder<uint64_t> finder(kLowBits);
    EXPECT_EQ(finder.HasRepeat(keys.size(),
                               [&](size_t i) {
                                 ++num_reads;
                                 return keys[i];
                               }),
              repeats);
    EXPECT_LT(num_reads, kCount * kCount / 8);
  }
}

}  // namespace
}  // namespace sparseagg::testing
