// The vectorised checks of keys and values against plain loops, on every SIMD target of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "host/updates/input_checks.h"

namespace sparseagg::internal {
namespace {

constexpr uint64_t kCheckSeed = 20261123;

// A copy of some elements that begins `offset` bytes behind an aligned address.
template <typename T>
class Unaligned {
 public:
  Unaligned(const std::vector<T>& elements, size_t offset) : bytes_(elements.size() * sizeof(T) + offset) {
    if (!elements.empty()) std::memcpy(bytes_.data() + offset, elements.data(), elements.size() * sizeof(T));
    data_ = bytes_.data() + offset;
  }
  const void* data() const { return data_; }

 private:
  std::vector<char> bytes_;
  const char* data_;
};

template <typename T>
KeyFacts PlainFacts(const std::vector<T>& keys) {
  KeyFacts facts;
  for (size_t i = 0; i < keys.size(); ++i) {
    facts.largest = std::max<uint64_t>(facts.largest, keys[i]);
    if (i == 0) continue;
    facts.descends |= keys[i] < keys[i - 1];
    facts.repeats |= keys[i] == keys[i - 1];
  }
  return facts;
}

template <typename T>
void ExpectFacts(const std::vector<T>& keys, size_t offset) {
  const Unaligned<T> memory(keys, offset);
  const KeyFacts expected = PlainFacts(keys);
  const KeyFacts found =
      sizeof(T) == 4 ? FindKeyFacts32(memory.data(), keys.size()) : FindKeyFacts64(memory.data(), keys.size());
  EXPECT_EQ(found.largest, expected.largest);
  EXPECT_EQ(found.descends, expected.descends);
  EXPECT_EQ(found.repeats, expected.repeats);
}

// Ascending keys that use the top bit, with one flaw at each place in turn.
template <typename T>
void CheckKeys(size_t size) {
  std::vector<T> keys(size);
  for (size_t i = 0; i < size; ++i) keys[i] = static_cast<T>(~T{0} - 3 * (size - i));
  ExpectFacts(keys, size % sizeof(T));
  for (size_t at = 0; at < size; ++at) {
    for (const T flaw : {T{0}, static_cast<T>(~T{0}), at > 0 ? keys[at - 1] : keys[at]}) {
      std::vector<T> flawed = keys;
      flawed[at] = flaw;
      SCOPED_TRACE(::testing::Message() << "size " << size << ", key " << flaw << " at " << at);
      ExpectFacts(flawed, at % sizeof(T));
    }
  }
}

// Small keys, with one in turn that has a bit which is lost.
void CheckNarrowing(size_t size) {
  constexpr uint32_t kBehind = 0xA5A5A5A5;
  std::mt19937_64 random(kCheckSeed);
  std::vector<uint64_t> keys(size);
  for (uint64_t& key : keys) key = random() >> 32;
  for (size_t at = 0; at <= size; at += std::max<size_t>(1, size / 150)) {
    SCOPED_TRACE(::testing::Message() << "size " << size << ", at " << at);
    std::vector<uint64_t> flawed = keys;
    if (at < size) flawed[at] |= uint64_t{1} << (32 + at % 32);
    std::vector<uint32_t> narrow(size + 1, kBehind);
    uint64_t bits = 0;
    for (const uint64_t key : flawed) bits |= key;
    EXPECT_EQ(NarrowKeys(Unaligned<uint64_t>(flawed, at % 8).data(), size, narrow.data()), bits);
    EXPECT_EQ(narrow.back(), kBehind);
    narrow.pop_back();
    EXPECT_EQ(std::vector<uint64_t>(narrow.begin(), narrow.end()), [&] {
      for (uint64_t& key : flawed) key &= 0xFFFFFFFF;
      return flawed;
    }());
  }
}

template <typename T, typename Find>
void CheckBits(size_t size, T mask, Find find) {
  std::mt19937_64 random(kCheckSeed);
  std::vector<T> values(size);
  for (T& value : values) value = static_cast<T>(random()) & static_cast<T>(~(mask & -mask));  // not all of the mask
  EXPECT_EQ(find(Unaligned<T>(values, 1).data(), size, mask), size);
  for (size_t at = 0; at < size; at += std::max<size_t>(1, size / 150)) {
    std::vector<T> flawed = values;
    flawed[at] |= mask;
    flawed[size - 1] |= mask;  // the first one counts
    SCOPED_TRACE(::testing::Message() << "size " << size << ", at " << at);
    EXPECT_EQ(find(Unaligned<T>(flawed, at % sizeof(T)).data(), size, mask), at);
  }
}

class ScanKernelsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

TEST_P(ScanKernelsTest, KeyFacts_AnySizeAndFlaw_AsAPlainLoop) {
  std::vector<size_t> sizes = {128, 129, 193, 260};  // several vectors at each of the places that are read at once
  for (size_t size = 1; size <= 70; ++size) sizes.push_back(size);
  for (const size_t size : sizes) {
    CheckKeys<uint32_t>(size);
    CheckKeys<uint64_t>(size);
  }
}

TEST_P(ScanKernelsTest, NarrowKeys_AnySizeAndPlace_LosesNoBitUnseen) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{31}, size_t{32}, size_t{33}, size_t{63}, size_t{64},
                            size_t{65}, size_t{129}, size_t{2048}, size_t{4099}}) {
    CheckNarrowing(size);
  }
}

TEST_P(ScanKernelsTest, FindAllBits_AnySizeAndPlace_FindsTheFirst) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{31}, size_t{32}, size_t{33}, size_t{63}, size_t{64},
                            size_t{65}, size_t{129}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{9000}}) {
    CheckBits<uint16_t>(size, 0x7c00, FindAllBits16);
    CheckBits<uint32_t>(size, 0x7f800000, FindAllBits32);
    CheckBits<uint64_t>(size, 0x7ff0000000000000, FindAllBits64);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ScanKernelsTest, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace sparseagg::internal
