// Packed keys and values: exact, as documented, and refused where bytes are spoilt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "host/wire/delta_keys.h"
#include "host/wire/packed_values.h"
#include "tests/support/values.h"

namespace sparseagg::wire {
namespace {

using ::testing::HasSubstr;

// Larger than any sum of a few thousand gaps.
__extension__ using Wide = unsigned __int128;

unsigned Bit(absl::string_view bytes, uint64_t index) {
  return static_cast<unsigned>(static_cast<uint8_t>(bytes[index / 8])) >> (index % 8) & 1u;
}

// A bit-by-bit decoder of packed keys without a bound, written from docs/wire-format.md alone; nullopt: the bytes have
// a wrong length, a wrong width, or bits where none may be.
std::optional<std::vector<Wide>> PlainDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys) {
  constexpr uint64_t kBlock = 128;
  const Wide num_blocks = (Wide{num_keys} + kBlock - 1) / kBlock;
  if (num_blocks > bytes.size()) return std::nullopt;
  std::vector<Wide> keys;
  Wide next = first_key;
  auto at = static_cast<uint64_t>(num_blocks);
  for (uint64_t block = 0; block < num_blocks; ++block) {
    const uint64_t width = static_cast<uint8_t>(bytes[block]);
    const uint64_t count = std::min<uint64_t>(kBlock, num_keys - block * kBlock);
    const uint64_t size = (count * width + 7) / 8;
    if (width > 64 || bytes.size() - at < size) return std::nullopt;
    const absl::string_view bits = bytes.substr(at, size);
    at += size;
    for (uint64_t i = 0; i < count; ++i) {
      Wide gap = 0;
      for (uint64_t b = 0; b < width; ++b) gap |= Wide{Bit(bits, i * width + b)} << b;
      keys.push_back(next + gap);
      next = keys.back() + 1;
    }
    for (uint64_t b = count * width; b < 8 * size; ++b) {
      if (Bit(bits, b) != 0) return std::nullopt;
    }
  }
  if (at != bytes.size()) return std::nullopt;
  return keys;
}

// `count` keys, ascending from `first`, with gaps of up to `bits` bits, one of them with all bits set.
std::vector<uint64_t> AscendingKeys(std::mt19937_64& random, size_t count, uint64_t first, int bits) {
  const uint64_t widest = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  const size_t at_widest = count < 2 ? 0 : 1 + random() % (count - 1);
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t gap = i == at_widest ? widest : random() & widest;
    keys.push_back(i == 0 ? first : keys.back() + gap + 1);
  }
  return keys;
}

// Bytes in memory of exactly their size, so that the address sanitizer sees a read beyond them.
class Exact {
 public:
  explicit Exact(absl::string_view bytes) : data_(std::make_unique<char[]>(bytes.size())), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data_.get());
  }
  absl::string_view view() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<char[]> data_;
  size_t size_;
};

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

// ---- Packed values in both directions against the tests' own conversions, on every SIMD target of the machine.

constexpr uint64_t kValuesSeed = 20261128;

template <typename T>
constexpr DType kDType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;

DType NarrowDType(ValuePacking packing) {
  return packing == ValuePacking::kFloat16    ? DType::kFloat16
         : packing == ValuePacking::kBFloat16 ? DType::kBFloat16
                                              : DType::kFloat32;
}

template <typename T>
std::vector<T> Unpack(ValuePacking packing, absl::string_view bytes) {
  const Exact exact(bytes);
  const auto count = CountValues(packing, kDType<T>, bytes.size());
  EXPECT_TRUE(count.ok()) << count.status();
  std::vector<T> out(*count);
  const auto status = UnpackValues(packing, kDType<T>, exact.view(), *count, reinterpret_cast<std::byte*>(out.data()));
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

template <typename T>
std::optional<std::string> Pack(ValuePacking packing, const std::vector<T>& values) {
  return PackValues(packing, kDType<T>, reinterpret_cast<const std::byte*>(values.data()), values.size());
}

template <typename T>
void ExpectBits(T actual, T expected) {
  EXPECT_EQ(std::memcmp(&actual, &expected, sizeof(T)), 0) << actual << " instead of " << expected;
}

class PackedValuesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

template <typename T>
void CheckAllHalves(ValuePacking packing) {
  std::vector<uint16_t> halves(65536 + 3);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const std::string bytes(reinterpret_cast<const char*>(halves.data()), 2 * halves.size());
  const std::vector<T> wide = Unpack<T>(packing, bytes);
  ASSERT_EQ(wide.size(), halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    const double expected = sparseagg::testing::ReadFloat(NarrowDType(packing), bytes.data() + 2 * i);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide[i]));
    } else {
      ExpectBits(wide[i], static_cast<T>(expected));
    }
  }
}

TEST_P(PackedValuesTest, UnpackValues_AllHalves_AreExact) {
  CheckAllHalves<float>(ValuePacking::kFloat16);
  CheckAllHalves<float>(ValuePacking::kBFloat16);
  CheckAllHalves<double>(ValuePacking::kFloat16);
  CheckAllHalves<double>(ValuePacking::kBFloat16);
}

template <typename T>
void CheckScaled(size_t count) {
  std::mt19937_64 random(kValuesSeed + count);
  const size_t num_scales = (count + 63) / 64;
  std::vector<float> scales(num_scales);
  for (float& scale : scales)
    scale = std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 240) - 130);
  std::string bytes(reinterpret_cast<const char*>(scales.data()), 4 * num_scales);
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(random()));
  const std::vector<T> values = Unpack<T>(ValuePacking::kInt8Scaled, bytes);
  ASSERT_EQ(values.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const auto multiple = static_cast<int8_t>(bytes[4 * num_scales + i]);
    ExpectBits<T>(values[i], static_cast<T>(scales[i / 64]) * static_cast<T>(multiple));
  }
}

TEST_P(PackedValuesTest, UnpackValues_Scaled_AnySize) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{63}, size_t{64}, size_t{65}, size_t{127},
                             size_t{128}, size_t{129}, size_t{1000}}) {
    CheckScaled<float>(count);
    CheckScaled<double>(count);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, PackedValuesTest, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const auto& param_info) { return param_info.param; });

// ---- packing, which is the same on all

template <typename T>
void CheckRounding(ValuePacking packing) {
  std::mt19937_64 random(kValuesSeed);
  // Above a tie of float16, and of bfloat16, by less than float32 sees: rounded to that on the way they would be ties.
  std::vector<T> values = {T{0},
                           -T{0},
                           T{1},
                           static_cast<T>(1 + 0x1p-11 + 0x1p-40),
                           static_cast<T>(-1 - 0x1p-8 - 0x1p-40),
                           std::numeric_limits<T>::infinity(),
                           -std::numeric_limits<T>::infinity(),
                           std::numeric_limits<T>::denorm_min()};
  for (int i = 0; i < 1000; ++i) {
    values.push_back(std::ldexp(static_cast<T>(random() % 100000), static_cast<int>(random() % 25) - 26));
  }
  const auto bytes = Pack(packing, values);
  ASSERT_TRUE(bytes.has_value());
  const std::vector<T> back = Unpack<T>(packing, *bytes);
  const DType narrow = NarrowDType(packing);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string expected = sparseagg::testing::PackFloats(narrow, {static_cast<double>(values[i])});
    EXPECT_EQ(bytes->substr(i * SizeOf(narrow), SizeOf(narrow)), expected) << values[i] << ", seed " << kValuesSeed;
    ExpectBits<T>(back[i], static_cast<T>(sparseagg::testing::ReadFloat(narrow, expected.data())));
  }
}

TEST(PackValues, Floats_AreRoundedOnce) {
  CheckRounding<float>(ValuePacking::kFloat16);
  CheckRounding<float>(ValuePacking::kBFloat16);
  CheckRounding<double>(ValuePacking::kFloat16);
  CheckRounding<double>(ValuePacking::kBFloat16);
  CheckRounding<double>(ValuePacking::kFloat32);
}

TEST(PackValues, BeyondTheRange_IsNotPacked) {
  EXPECT_TRUE(Pack<float>(ValuePacking::kFloat16, {65519.0f}).has_value());
  EXPECT_FALSE(Pack<float>(ValuePacking::kFloat16, {1.0f, 65520.0f}).has_value());
  EXPECT_FALSE(Pack<float>(ValuePacking::kBFloat16, {-3.4e38f}).has_value());
  EXPECT_FALSE(Pack<double>(ValuePacking::kFloat32, {1e39}).has_value());
  EXPECT_TRUE(Pack<double>(ValuePacking::kInt8Scaled, {1.6e38}).has_value());
  EXPECT_FALSE(Pack<double>(ValuePacking::kInt8Scaled, {0.0, 1.7e38}).has_value());
  EXPECT_FALSE(Pack<float>(ValuePacking::kInt8Scaled, {std::numeric_limits<float>::infinity()}).has_value());
  EXPECT_FALSE(Pack<float>(ValuePacking::kInt8Scaled, {std::numeric_limits<float>::quiet_NaN()}).has_value());
  EXPECT_FALSE(Pack<float>(ValuePacking::kFloat32, {1.0f}).has_value()) << "that is no narrower";
  EXPECT_FALSE(Pack<float>(ValuePacking::kOwn, {1.0f}).has_value());
}

TEST(PackValues, Int8Scaled_IsWithinHalfAStep) {
  std::mt19937_64 random(kValuesSeed);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}}) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(static_cast<int64_t>(random())) * 0x1p-70f;
    const auto bytes = Pack(ValuePacking::kInt8Scaled, values);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ(bytes->size(), count + 4 * ((count + 63) / 64));
    const std::vector<float> back = Unpack<float>(ValuePacking::kInt8Scaled, *bytes);
    ASSERT_EQ(back.size(), count);
    for (size_t i = 0; i < count; ++i) {
      float largest = 0;
      for (size_t j = i / 64 * 64; j < std::min(count, i / 64 * 64 + 64); ++j)
        largest = std::max(largest, std::abs(values[j]));
      EXPECT_LE(std::abs(back[i] - values[i]), 0.5 * (1 + 1e-5) * largest / 127)
          << "seed " << kValuesSeed << ", value " << i;
    }
  }
}

TEST(PackValues, Int8Scaled_Example_AsDocumented) {
  EXPECT_EQ(*Pack<float>(ValuePacking::kInt8Scaled, {1.0f, -0.5f, 0.25f, 0.0f}),
            std::string("\x04\x02\x01\x3c\x7f\xc0\x20\x00", 8));
  EXPECT_EQ(*Pack<float>(ValuePacking::kInt8Scaled, {0.0f, -0.0f}), std::string(6, '\0'));
}

TEST(PackingOf, OnlyWiderFloats) {
  EXPECT_EQ(PackingOf(DType::kFloat16, DType::kFloat32), ValuePacking::kFloat16);
  EXPECT_EQ(PackingOf(DType::kFloat32, DType::kFloat64), ValuePacking::kFloat32);
  EXPECT_EQ(PackingOf(DType::kInt32, DType::kInt32), ValuePacking::kOwn);
  EXPECT_EQ(PackingOf(DType::kInt32, DType::kInt64), std::nullopt);
  EXPECT_EQ(PackingOf(DType::kInt32, DType::kFloat32), std::nullopt);
  EXPECT_EQ(PackingOf(DType::kFloat32, DType::kFloat16), std::nullopt);
  EXPECT_EQ(PackingOf(DType::kFloat16, DType::kBFloat16), std::nullopt);
  EXPECT_FALSE(Widens(ValuePacking::kInt8Scaled, DType::kFloat16));
  EXPECT_FALSE(Widens(ValuePacking::kInt8Scaled, DType::kInt32));
}

}  // namespace
}  // namespace sparseagg::wire
