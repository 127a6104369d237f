// DELTA_BITPACKED against a bit-by-bit decoder, on every SIMD target of the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "host/wire/delta_keys.h"
#include "tests/host/wire/plain_keys.h"

namespace sparseagg::wire {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKeysSeed = 20261124;
constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMax32 = std::numeric_limits<uint32_t>::max();

struct Encoded {
  std::string bytes;
  uint64_t first_key = 0;
  uint64_t num_keys = 0;
};

template <typename Key>
Encoded Encode(const std::vector<Key>& keys) {
  const auto span = absl::MakeConstSpan(keys);
  Encoded encoded{EncodeDeltaKeys(span), keys.empty() ? 0 : keys.front(), keys.size()};
  EXPECT_EQ(encoded.bytes.size(), DeltaKeyBytes(span));
  return encoded;
}

// Decodes what may be wrong, and holds the verdict and the keys to the plain decoders. Returns whether all was good.
template <typename Key>
bool Check(const Encoded& encoded, uint64_t largest) {
  const Exact bytes(encoded.bytes);
  const uint64_t num_keys = encoded.num_keys;
  const auto expected = PlainDeltaKeys(bytes.view(), encoded.first_key, num_keys);
  const absl::Status status = CheckDeltaKeys(bytes.view(), num_keys);
  EXPECT_EQ(status.ok(), expected.has_value()) << status;
  if (!status.ok() || !expected.has_value()) return false;
  const auto bad = std::find_if(expected->begin(), expected->end(), [&](Wide key) { return key > largest; });
  const auto num_good = static_cast<uint64_t>(bad - expected->begin());

  const auto out = std::make_unique<Key[]>(num_keys);  // as large as it has to be
  const DecodedKeys decoded = DecodeDeltaKeys(bytes.view(), encoded.first_key, num_keys, largest, out.get());
  EXPECT_EQ(decoded.count, num_good);
  if (bad != expected->end()) {
    EXPECT_EQ(decoded.bad_key, static_cast<uint64_t>(*bad));
    EXPECT_EQ(decoded.wraps, *bad > kMax);
    return false;
  }
  for (size_t i = 0; i < num_keys; ++i) {
    if (out[i] != (*expected)[i]) {
      ADD_FAILURE() << "key " << i << " is " << out[i] << " instead of " << static_cast<uint64_t>((*expected)[i]);
      return false;
    }
  }
  return true;
}

class PackedKeysTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

TEST_P(PackedKeysTest, Delta_AnySizeAndWidth_GivesTheKeysBack) {
  std::mt19937_64 random(kKeysSeed);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{127}, size_t{128}, size_t{129}, size_t{255},
                            size_t{256}, size_t{257}, size_t{700}}) {
    for (int bits = 0; bits <= 57; ++bits) {
      SCOPED_TRACE(::testing::Message() << size << " keys, gaps of " << bits << " bits, seed " << kKeysSeed);
      const uint64_t first = random() % 1000;
      const std::vector<uint64_t> keys =
          AscendingKeys(random, bits < 54 ? size : std::min<size_t>(size, 120), first, bits);
      EXPECT_TRUE(Check<uint64_t>(Encode(keys), kMax));
      if (!keys.empty() && keys.back() > kMax32) continue;
      const std::vector<uint32_t> narrow(keys.begin(), keys.end());
      const Encoded encoded = Encode(narrow);
      EXPECT_EQ(encoded.bytes, Encode(keys).bytes);
      EXPECT_TRUE(Check<uint32_t>(encoded, kMax32));
    }
  }
}

TEST_P(PackedKeysTest, Delta_KeysUpToTheEndOfTheirSpace_DoNotWrap) {
  // Blocks that end exactly at the largest key, and one past it.
  for (const uint64_t end : {kMax32, kMax}) {
    for (const size_t size : {size_t{1}, size_t{128}, size_t{256}, size_t{300}}) {
      std::vector<uint64_t> keys(size);
      for (size_t i = 0; i < size; ++i) keys[i] = end - 3 * (size - 1 - i);
      Encoded encoded = Encode(keys);
      EXPECT_TRUE(Check<uint64_t>(encoded, end));
      EXPECT_TRUE(end != kMax32 || Check<uint32_t>(encoded, end));
      for (const uint64_t shift : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1000}}) {
        if (keys.front() > kMax - shift) continue;
        encoded.first_key = keys.front() + shift;
        EXPECT_FALSE(Check<uint64_t>(encoded, end)) << size << " keys, " << shift << " too far";
        EXPECT_FALSE(end == kMax32 && Check<uint32_t>(encoded, end));
      }
    }
  }
}

TEST_P(PackedKeysTest, Delta_GapsOfAllBits_AreExact) {
  for (const uint64_t last : {uint64_t{1}, kMax32, kMax32 + 1, uint64_t{1} << 57, uint64_t{1} << 63, kMax}) {
    const std::vector<uint64_t> keys = {0, last};
    EXPECT_TRUE(Check<uint64_t>(Encode(keys), last));
    EXPECT_FALSE(Check<uint64_t>(Encode(keys), last - 1));
  }
}

TEST_P(PackedKeysTest, Delta_WidestBlockOfTheKernel_SpansAll32Bits) {
  // 128 gaps of 25 bits, all set: the block ends 2^32 - 1 behind the least key that may come.
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 400; ++i) keys.push_back(i == 0 ? 0 : keys.back() + (uint64_t{1} << 25));
  const Encoded encoded = Encode(keys);
  EXPECT_EQ(encoded.bytes[1], 25);
  EXPECT_TRUE(Check<uint64_t>(encoded, kMax));
  EXPECT_TRUE(Check<uint64_t>(encoded, keys.back()));
  EXPECT_FALSE(Check<uint64_t>(encoded, keys.back() - 1));
  EXPECT_FALSE(Check<uint32_t>(encoded, kMax32));
}

TEST_P(PackedKeysTest, Delta_FirstGap_IsAddedToFirstKey) {
  std::mt19937_64 random(kKeysSeed);
  for (const size_t size : {size_t{1}, size_t{4}, size_t{128}, size_t{300}}) {
    for (const int bits : {1, 3, 20, 40}) {
      SCOPED_TRACE(::testing::Message() << size << " keys, gaps of " << bits << " bits, seed " << kKeysSeed);
      std::vector<uint64_t> keys = AscendingKeys(random, size, 1000, bits);
      Encoded encoded = Encode(keys);
      if (size == 1) encoded.bytes = {'\1', '\0'};
      ASSERT_GT(encoded.bytes[0], 0);
      encoded.bytes[(size + 127) / 128] |= 1;  // the lowest bit of gap_0
      for (uint64_t& key : keys) ++key;
      EXPECT_TRUE(PlainDeltaKeys(encoded.bytes, 1000, size) == std::vector<Wide>(keys.begin(), keys.end()));
      EXPECT_TRUE(Check<uint64_t>(encoded, keys.back()));
      EXPECT_FALSE(Check<uint64_t>(encoded, keys.back() - 1));
      EXPECT_TRUE(keys.back() > kMax32 || Check<uint32_t>(encoded, keys.back()));
      encoded.first_key = kMax;
      EXPECT_FALSE(Check<uint64_t>(encoded, kMax));
    }
  }
}

// Good encodings, spoilt in a few places at random: no verdict and no key may differ from the plain decoders'.
TEST_P(PackedKeysTest, Decode_SpoiltBytes_AsThePlainDecoders) {
  constexpr int kTrials = 6000;
  int num_good = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t seed = kKeysSeed + static_cast<uint64_t>(trial);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int max_bits = random() % 4 == 0 ? 56 : 27;
    const std::vector<uint64_t> keys = AscendingKeys(random, random() % 290, random() % 100000,
                                                     static_cast<int>(random() % static_cast<unsigned>(max_bits + 1)));
    Encoded encoded = Encode(keys);
    for (uint64_t change = random() % 4; change > 0; --change) {
      const size_t at = encoded.bytes.empty() ? 0 : random() % encoded.bytes.size();
      switch (random() % 8) {
        case 0:
          encoded.num_keys = random() % 3 == 0 ? random() : random() % 400;
          break;
        case 1:
          encoded.first_key = random() % 2 == 0 ? random() : kMax - random() % 5000;
          break;
        case 2:
          encoded.bytes.resize(at);
          break;
        case 3:
          encoded.bytes.append(1 + random() % 20, static_cast<char>(random() % 3));
          break;
        case 4:  // a width, most likely
          if (!encoded.bytes.empty()) encoded.bytes[at % 3 % encoded.bytes.size()] = static_cast<char>(random() % 70);
          break;
        default:
          if (!encoded.bytes.empty()) encoded.bytes[at] = static_cast<char>(random());
      }
    }
    const uint64_t largest = random() % 3 == 0 && !keys.empty() ? keys[random() % keys.size()]
                             : random() % 2 == 0                ? kMax
                                                                : random() >> (random() % 64);
    num_good += Check<uint64_t>(encoded, largest) ? 1 : 0;
    Check<uint32_t>(encoded, std::min(largest, kMax32));
    if (HasFailure()) return;
  }
  EXPECT_GT(num_good, kTrials / 20) << "the test has to see good ones, too";
  EXPECT_LT(num_good, kTrials / 2);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, PackedKeysTest, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const auto& param_info) { return param_info.param; });

// ---- the layout, as documented

TEST(PackedKeysLayout, Delta_Example_AsDocumented) {
  const std::vector<uint32_t> keys = {1000, 1001, 1007, 1010};
  EXPECT_EQ(EncodeDeltaKeys(keys), "\x03\x40\x05");
  const std::vector<uint32_t> run(256, 0);
  std::vector<uint32_t> ascending = run;
  for (uint32_t i = 0; i < 256; ++i) ascending[i] = 5 + i;
  EXPECT_EQ(EncodeDeltaKeys(ascending), std::string(2, '\0')) << "a run costs its widths";
}

TEST(PackedKeysLayout, CheckDeltaKeys_WrongLengths_AreNamed) {
  using namespace std::string_literals;
  struct Row {
    std::string bytes;
    uint64_t num_keys;
    std::string words;
  };
  const std::vector<Row> table = {
      {"\x03\x40"s, 4, "2 bytes of keys, but num_keys 4 with these widths needs 3"},
      {"\x03\x40\x05\x00"s, 4, "4 bytes of keys, but num_keys 4 with these widths needs 3"},
      {"\x03\x40\x05"s, 6, "3 bytes of keys, but num_keys 6 with these widths needs 4"},
      {"\x03\x40\x15"s, 4, "the bits behind the last key are not zero"},
      {"\x41\x40\x05"s, 4, "block 0 of keys has gaps of 65 bits; at most 64"},
      {"\xff\x40\x05"s, 4, "block 0 of keys has gaps of 255 bits"},
      {""s, 1, "0 bytes of keys are too few for the widths of 1 blocks"},
      {"\x03\x40\x05"s, 0, "3 bytes of keys, but num_keys 0 with these widths needs 0"},
      {"\x03\x40\x05"s, kMax, "too few for the widths of 144115188075855872 blocks"},
      {"\x03\x40\x05"s, 500, "too few for the widths of 4 blocks of num_keys 500"},
  };
  for (const Row& row : table) {
    const absl::Status status = CheckDeltaKeys(row.bytes, row.num_keys);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.words));
  }
  EXPECT_TRUE(CheckDeltaKeys("", 0).ok());
  EXPECT_TRUE(CheckDeltaKeys("\x03\x40\x05"s, 4).ok());
}

}  // namespace
}  // namespace sparseagg::wire
