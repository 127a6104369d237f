// Keys of any integer type, copied into the tensor's key type and checked, on every SIMD target of the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "host/updates/input_checks.h"
#include "host/updates/update.h"

namespace sparseagg::internal {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kNarrowKeys = uint64_t{1} << 32;  // the largest num_rows whose keys have 32 bits

TensorSpec KeysSpec(uint64_t num_rows) {
  TensorSpec spec;
  spec.name = "v";
  spec.num_rows = num_rows;
  return spec;
}

class CopyKeysTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

// The copies of keys that are overwritten as soon as they are copied.
template <typename To, typename From>
std::vector<uint64_t> Copied(uint64_t num_rows, std::vector<From> keys, KeyOrder* found = nullptr) {
  const TensorSpec spec = KeysSpec(num_rows);
  KeyOrder order;
  const auto columns = CopyKeys({&spec, std::nullopt}, absl::MakeConstSpan(keys), nullptr, nullptr, order);
  EXPECT_TRUE(columns.ok()) << columns.status();
  std::fill(keys.begin(), keys.end(), From{99});
  if (found != nullptr) *found = order;
  const auto& span = std::get<absl::Span<const To>>(columns->keys);
  return {span.begin(), span.end()};
}

template <typename From>
std::string Refusal(uint64_t num_rows, const std::vector<From>& keys) {
  const TensorSpec spec = KeysSpec(num_rows);
  KeyOrder order;
  const auto columns = CopyKeys({&spec, std::nullopt}, absl::MakeConstSpan(keys), nullptr, nullptr, order);
  EXPECT_EQ(columns.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(columns.status().message());
}

TEST_P(CopyKeysTest, LargestKeys_Fit) {
  const uint64_t narrow = kNarrowKeys - 1;
  EXPECT_EQ((Copied<uint32_t, uint64_t>(kNarrowKeys, {narrow, 0})), (std::vector<uint64_t>{narrow, 0}));
  EXPECT_EQ((Copied<uint32_t, int64_t>(kNarrowKeys, {int64_t{1} << 31})), (std::vector<uint64_t>{1u << 31}));
  const uint64_t wide = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ((Copied<uint64_t, uint64_t>(0, {wide})), (std::vector<uint64_t>{wide}));
}

// Lengths around vectors and batches.
const size_t kSizes[] = {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 2047, 2048, 2049, 4096, 4097, 5000};

// Positions all over, and those at the ends of batches.
std::vector<size_t> Places(size_t size) {
  std::vector<size_t> places;
  for (size_t at = 0; at < size; at += std::max<size_t>(1, size / 97)) places.push_back(at);
  for (const size_t at : {size_t{2047}, size_t{2048}, size_t{4095}, size_t{4096}, size - 1}) {
    if (at < size) places.push_back(at);
  }
  return places;
}

template <typename To, typename From>
void CopiesAnyLength(uint64_t num_rows) {
  for (const size_t size : kSizes) {
    SCOPED_TRACE(::testing::Message() << "size " << size);
    std::vector<From> keys(size);
    for (size_t i = 0; i < size; ++i) keys[i] = static_cast<From>(3 * i + 5);
    KeyOrder order;
    EXPECT_EQ((Copied<To, From>(num_rows, keys, &order)), std::vector<uint64_t>(keys.begin(), keys.end()));
    EXPECT_EQ(order.empty, size == 0);
    EXPECT_TRUE(order.sorted && order.unique);
    if (size > 0) {
      EXPECT_EQ(order.last, 3 * (size - 1) + 5);
    }
    for (const size_t at : Places(size)) {
      if (at == 0) continue;
      std::vector<From> flawed = keys;
      flawed[at] = flawed[at - 1];
      Copied<To, From>(num_rows, flawed, &order);
      EXPECT_TRUE(order.sorted && !order.unique) << "repeated at " << at;
      flawed[at] = 4;
      EXPECT_EQ((Copied<To, From>(num_rows, flawed, &order))[at], 4u);
      EXPECT_FALSE(order.sorted || order.unique) << "descends at " << at;
    }
  }
}

TEST_P(CopyKeysTest, AnyLength_IsCopiedAndItsOrderFound) {
  CopiesAnyLength<uint32_t, uint32_t>(kNarrowKeys);
  CopiesAnyLength<uint32_t, int32_t>(kNarrowKeys);
  CopiesAnyLength<uint32_t, uint64_t>(kNarrowKeys);
  CopiesAnyLength<uint32_t, int64_t>(kNarrowKeys);
  CopiesAnyLength<uint64_t, uint32_t>(0);
  CopiesAnyLength<uint64_t, int32_t>(0);
  CopiesAnyLength<uint64_t, uint64_t>(0);
  CopiesAnyLength<uint64_t, int64_t>(0);
}

TEST_P(CopyKeysTest, KeyThatDoesNotFit_IsNamedWithItsPlace) {
  const std::string narrow = "tensor 'v': key -3 at position 2 is not in [0, 10)";
  EXPECT_EQ(Refusal(10, std::vector<int32_t>{1, 2, -3, -4}), narrow);
  EXPECT_EQ(Refusal(10, std::vector<int64_t>{1, 2, -3, -4}), narrow);
  const std::string wide =
      "tensor 'v': key -3 at position 2 is negative; keys are unsigned, and signed 64-bit ids keep their bits as "
      "uint64: keys.view(np.uint64)";
  EXPECT_EQ(Refusal(0, std::vector<int32_t>{1, 2, -3}), wide);
  EXPECT_EQ(Refusal(0, std::vector<int64_t>{1, 2, -3}), wide);
  EXPECT_THAT(Refusal(10, std::vector<uint64_t>{1, kNarrowKeys}), HasSubstr("key 4294967296 at position 1"));
  EXPECT_THAT(Refusal(10, std::vector<int64_t>{static_cast<int64_t>(kNarrowKeys)}),
              HasSubstr("key 4294967296 at position 0"));
}

// The key that is cut to a good one: its low half is below num_rows.
TEST_P(CopyKeysTest, BadKeyAnywhere_IsNamedWithItsPlace) {
  for (const size_t size : kSizes) {
    for (const size_t at : Places(size)) {
      SCOPED_TRACE(::testing::Message() << "size " << size << ", at " << at);
      std::vector<int64_t> keys(size, 1);
      keys.back() = -1;  // the first bad key counts, in the same batch or before it
      keys[at] = static_cast<int64_t>(kNarrowKeys) + 2;
      const std::string place = "key 4294967298 at position " + std::to_string(at) + " is not in [0, 10)";
      EXPECT_EQ(Refusal(10, keys), "tensor 'v': " + place);
      std::vector<int64_t> beyond(size, 1);
      beyond[at] = 10;
      EXPECT_EQ(Refusal(10, beyond),
                "tensor 'v', position " + std::to_string(at) + ": key 10 is not below num_rows 10");
      std::vector<int32_t> negative(size, 1);
      negative[at] = std::numeric_limits<int32_t>::min();
      EXPECT_THAT(Refusal(0, negative), HasSubstr("key -2147483648 at position " + std::to_string(at) + " "));
      EXPECT_THAT(Refusal(10, negative), HasSubstr("key -2147483648 at position " + std::to_string(at) + " "));
    }
  }
}

TEST_P(CopyKeysTest, Run_StaysARun) {
  const TensorSpec spec = KeysSpec(10);
  KeyOrder order;
  const auto columns = CopyKeys({&spec, std::nullopt}, KeyRun{4, 6}, nullptr, nullptr, order);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(std::get<KeyRun>(columns->keys).count, 6u);
  EXPECT_EQ(order.last, 9u);
  EXPECT_FALSE(CopyKeys({&spec, std::nullopt}, KeyRun{4, 7}, nullptr, nullptr, order).ok());
}

TEST_P(CopyKeysTest, Copy_KeepsTheOwner) {
  auto owner = std::make_shared<int>(0);
  const TensorSpec spec = KeysSpec(10);
  const std::vector<int64_t> keys = {3};
  KeyOrder order;
  auto columns = CopyKeys({&spec, std::nullopt}, absl::MakeConstSpan(keys), owner, nullptr, order);
  ASSERT_TRUE(columns.ok());
  columns->value_owner = nullptr;
  EXPECT_EQ(owner.use_count(), 2);
  columns->owner = nullptr;
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_P(CopyKeysTest, Arena_HoldsTheCopiesAsLongAsOneLives) {
  const TensorSpec spec = KeysSpec(10);
  const std::vector<int64_t> keys = {3, 5, 8};
  auto arena = std::make_shared<KeyArena>(2 * KeyArena::BytesFor(3 * sizeof(uint32_t)));
  const std::weak_ptr<KeyArena> alive = arena;
  std::vector<UpdateColumns> copies;
  std::vector<const uint32_t*> places;
  for (int i = 0; i < 3; ++i) {
    KeyOrder order;
    const auto copy = CopyKeys({&spec, std::nullopt}, absl::MakeConstSpan(keys), nullptr, arena, order);
    ASSERT_TRUE(copy.ok()) << copy.status();
    const auto& found = std::get<absl::Span<const uint32_t>>(copy->keys);
    EXPECT_THAT(found, ::testing::ElementsAre(3, 5, 8));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found.data()) % 64, 0u);
    places.push_back(found.data());
    copies.push_back(*copy);
  }
  EXPECT_EQ(places[1] - places[0], 16);  // the next cache line
  EXPECT_NE(places[2] - places[1], 16);  // the arena is full
  EXPECT_EQ(arena.use_count(), 3);
  arena.reset();
  copies.erase(copies.begin());
  EXPECT_FALSE(alive.expired());
  copies.erase(copies.begin());
  EXPECT_TRUE(alive.expired());
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, CopyKeysTest, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const auto& param_info) { return param_info.param; });

// ---- The vectorised checks of keys and values against plain loops, on every SIMD target of the machine.

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
