#include "host/model/optimizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "host/base/float_environment.h"
#include "host/base/half.h"
#include "tests/host/model/step_reference.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

constexpr OptimizerKind kAdding[] = {OptimizerKind::kSgd, OptimizerKind::kFedAvgM, OptimizerKind::kFedAdagrad,
                                     OptimizerKind::kFedAdam, OptimizerKind::kFedYogi};

// The bytes of values of a dtype, beginning at an odd address.
class Values {
 public:
  Values(DType dtype, size_t n) : dtype_(dtype), bytes_(n * SizeOf(dtype) + 1) {}
  void* data() { return bytes_.data() + 1; }
  double Get(size_t i) const {
    const std::byte* at = bytes_.data() + 1 + i * SizeOf(dtype_);
    const auto load = [&](auto value) { return std::memcpy(&value, at, sizeof(value)), value; };
    switch (dtype_) {
      case DType::kFloat64:
        return load(double{});
      case DType::kFloat16:
        return WidenFloat16(load(uint16_t{}));
      case DType::kBFloat16:
        return WidenBFloat16(load(uint16_t{}));
      default:
        return load(float{});
    }
  }
  void Set(size_t i, double value) {
    std::byte* at = bytes_.data() + 1 + i * SizeOf(dtype_);
    const auto store = [&](auto rounded) { std::memcpy(at, &rounded, sizeof(rounded)); };
    switch (dtype_) {
      case DType::kFloat64:
        return store(value);
      case DType::kFloat16:
        return store(RoundToFloat16(value));
      case DType::kBFloat16:
        return store(RoundToBFloat16(value));
      default:
        return store(static_cast<float>(value));
    }
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

TEST(TakeStep_AnyKindDtypeAndLength, EqualsTheFormulas) {
  const DefaultFloatEnvironment environment;
  Rng rng(61);
  for (const OptimizerKind kind : kAdding) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const size_t n : {0, 1, 31, 32, 33, 255, 256, 257, 600}) {
        OptimizerSpec spec = DefaultOptimizer(kind);
        spec.gradients = rng.Coin();
        if (kind == OptimizerKind::kFedAdagrad && rng.Coin()) spec.beta_1 = 0.5;
        const DType state = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
        const DType delta_dtype = rng.Coin() ? DType::kFloat32 : DType::kFloat64;
        Values x(dtype, n), m(state, n), v(state, n), delta(delta_dtype, n);
        for (size_t i = 0; i < n; ++i) x.Set(i, rng.Unit() - 0.5), m.Set(i, 0), v.Set(i, 0);
        StepState steps(spec);
        for (int step = 1; step <= 3; ++step) {
          std::vector<StepValue> want(n);
          for (size_t i = 0; i < n; ++i) {
            delta.Set(i, rng.Coin() ? 0.0 : rng.Unit() - 0.5);
            want[i] = ReferenceStep(spec, step, {x.Get(i), m.Get(i), v.Get(i)}, delta.Get(i));
          }
          steps.Advance(spec);
          const StepRows rows = {.num_values = n,
                                 .dtype = dtype,
                                 .x = x.data(),
                                 .m = spec.HasM() ? m.data() : nullptr,
                                 .v = spec.HasV() ? v.data() : nullptr,
                                 .delta_dtype = delta_dtype,
                                 .delta = delta.data(),
                                 .delta_factor = spec.gradients ? -1.0 : 1.0};
          ASSERT_EQ(TakeStep(spec, steps.Rate(spec), rows), n);
          Values rounded_x(dtype, 1), rounded(state, 1);
          for (size_t i = 0; i < n; ++i) {
            const auto place = ::testing::Message()
                               << "kind " << int(kind) << " dtype " << Name(dtype) << " value " << i;
            rounded_x.Set(0, want[i].x);
            ASSERT_EQ(x.Get(i), rounded_x.Get(0)) << place;
            rounded.Set(0, want[i].m);
            ASSERT_EQ(m.Get(i), rounded.Get(0)) << place;
            rounded.Set(0, want[i].v);
            ASSERT_EQ(v.Get(i), rounded.Get(0)) << place;
          }
        }
      }
    }
  }
}

TEST(TakeStep_ValueNotFinite, ReturnsItsIndexAndComputesAll) {
  const DefaultFloatEnvironment environment;
  const OptimizerSpec spec = DefaultOptimizer(OptimizerKind::kSgd);
  for (const size_t bad : {0, 1, 255, 256, 299}) {
    std::vector<float> x(300, 1.0f), delta(300, 1.0f);
    delta[bad] = bad % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
    delta[299] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(TakeStep(spec, 1.0, {.num_values = 300, .x = x.data(), .delta = delta.data()}), bad);
    EXPECT_EQ(x[298], 2.0f);
  }
}

TEST(TakeStep_FiniteSumTooLargeForFloat32, IsNotFinite) {
  const DefaultFloatEnvironment environment;
  float x = std::numeric_limits<float>::max();
  const double delta = 0x1p127;
  const StepRows rows = {.num_values = 1, .x = &x, .delta_dtype = DType::kFloat64, .delta = &delta};
  EXPECT_EQ(TakeStep(DefaultOptimizer(OptimizerKind::kSgd), 1.0, rows), 0u);
}

TEST(TakeStep_AssignOfInt64ToInt32, FindsTheFirstValueThatDoesNotFit) {
  const OptimizerSpec spec = DefaultOptimizer(OptimizerKind::kAssign);
  std::vector<int64_t> delta = {5, -(int64_t{1} << 31), (int64_t{1} << 31) - 1, int64_t{1} << 31, int64_t{1} << 40};
  std::vector<int32_t> x(5);
  StepRows rows = {
      .num_values = 5, .dtype = DType::kInt32, .x = x.data(), .delta_dtype = DType::kInt64, .delta = delta.data()};
  EXPECT_EQ(TakeStep(spec, 0.0, rows), 3u);
  rows.num_values = 3;
  EXPECT_EQ(TakeStep(spec, 0.0, rows), 3u);
  EXPECT_EQ(x[1], std::numeric_limits<int32_t>::min());
}

TEST(StepState_BiasCorrection, UsesRunningProducts) {
  const OptimizerSpec spec = DefaultOptimizer(OptimizerKind::kFedAdam);
  StepState steps(spec);
  steps.Advance(spec);
  EXPECT_EQ(steps.power_1(), 0.9 * 0.9);
  steps.Advance(spec);
  EXPECT_EQ(steps.power_2(), 0.99 * 0.99 * 0.99);
  EXPECT_EQ(steps.Rate(spec), 0.1 * (std::sqrt(1.0 - steps.power_2()) / (1.0 - steps.power_1())));
}

}  // namespace
}  // namespace sparseagg::testing
