// Kernels of bounds: every SIMD target gives the bits of a loop over one value at a time.
#include "host/clip/clip_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "tests/support/random.h"
#include "tests/support/values.h"

namespace sparseagg::clip {
namespace {

using testing::Pack;
using testing::Rng;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

class ClipKernels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceSimdTarget("").ok()); }
};

const std::byte* Bytes(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }

// Small multiples of powers of two, which every float type holds.
std::vector<double> RandomValues(Rng& rng, size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    const auto significand = static_cast<double>(rng.Below(255)) - 127.0;
    values.push_back(std::ldexp(significand, static_cast<int>(rng.Below(12)) - 6));
  }
  return values;
}

TEST_P(ClipKernels, AddSquares_AnyNumberBefore_AddsToTheLaneOfEachIndex) {
  Rng rng(20261127);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const size_t count : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 1000}) {
      for (uint64_t before = 0; before < 9; ++before) {
        for (const double limit : {kNoLimit, 3.3}) {
          const std::vector<double> values = RandomValues(rng, count);
          SquaredSum sum{{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}, before};
          SquaredSum expected = sum;
          double largest = 0.0;
          for (const double value : values) {
            largest = std::max(largest, std::abs(value));
            const double clamped = std::min(std::abs(value), limit);
            expected.lanes[expected.num_values++ % 8] += clamped * clamped;
          }
          const std::string packed = Pack(dtype, values);
          EXPECT_EQ(AddSquares(dtype, Bytes(packed), count, limit, sum), largest);
          EXPECT_EQ(std::memcmp(sum.lanes, expected.lanes, sizeof(sum.lanes)), 0) << count << " after " << before;
          EXPECT_EQ(sum.num_values, expected.num_values);
        }
      }
    }
  }
}

TEST(Clamp, EveryFloatType_ClampsToTheLimit) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    std::string packed = Pack(dtype, {-4, -3, -2.5, -0.5, 0, 0.5, 2.5, 3, 4, 1000});
    Clamp(dtype, reinterpret_cast<std::byte*>(packed.data()), 10, 2.5);
    EXPECT_EQ(packed, Pack(dtype, {-2.5, -2.5, -2.5, -0.5, 0, 0.5, 2.5, 2.5, 2.5, 2.5})) << Name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ClipKernels, ::testing::ValuesIn(cpu::SimdTargets()),
                         [](const auto& target) { return target.param; });

}  // namespace
}  // namespace sparseagg::clip
