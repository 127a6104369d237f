// Packed values in both directions against the tests' own conversions, on every SIMD target of the machine.
#include "host/wire/packed_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "tests/host/wire/plain_keys.h"
#include "tests/support/values.h"

namespace sparseagg::wire {
namespace {

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
