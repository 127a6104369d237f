// Results in callers' threads that flush denormals or round otherwise: the same bits.
#include "host/base/float_environment.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/host_threads.h"
#include "host/spec/spec.h"
#include "tests/host/engine/contract.h"
#include "tests/support/sanitized.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace sparseagg::testing {
namespace {

enum class Setting { kUpward, kDownward, kTowardZero, kFlushResults, kFlushOperands, kFlushDenormals };
constexpr Setting kSettings[] = {Setting::kUpward,       Setting::kDownward,      Setting::kTowardZero,
                                 Setting::kFlushResults, Setting::kFlushOperands, Setting::kFlushDenormals};

// Of this thread, as long as it lives.
class Set {
 public:
  explicit Set(Setting setting) {
    std::fegetenv(&before_);
    if (setting == Setting::kUpward) std::fesetround(FE_UPWARD);
    if (setting == Setting::kDownward) std::fesetround(FE_DOWNWARD);
    if (setting == Setting::kTowardZero) std::fesetround(FE_TOWARDZERO);
#if defined(__SSE__)
    constexpr unsigned kResults = 0x8000;
    constexpr unsigned kOperands = 0x0040;
    if (setting == Setting::kFlushResults) _mm_setcsr(_mm_getcsr() | kResults);
    if (setting == Setting::kFlushOperands) _mm_setcsr(_mm_getcsr() | kOperands);
    if (setting == Setting::kFlushDenormals) _mm_setcsr(_mm_getcsr() | kResults | kOperands);
#endif
  }
  ~Set() { std::fesetenv(&before_); }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

 private:
  std::fenv_t before_;
};

// What the thread does, as it shows in sums. Volatile: it is to be computed here and now.
std::string Habits() {
  volatile double one = 1.0;
  volatile double small = 0x1p-60;
  volatile double denormal = 0x1p-1074;
  return absl::StrCat(one + small == 1.0 ? "" : "up ", -one - small == -1.0 ? "" : "down ",
                      one - small == 1.0 ? "" : "to zero ", denormal + denormal > 0.0 ? "" : "flushes ");
}

TEST(FloatEnvironment, Guard_NearestWithDenormals_ThenAsBefore) {
  const std::string usual = Habits();
  EXPECT_EQ(usual, "");
  for (const Setting setting : kSettings) {
    const Set set(setting);
    const std::string before = Habits();
    std::feclearexcept(FE_ALL_EXCEPT);
    {
      const DefaultFloatEnvironment guard;
      EXPECT_EQ(Habits(), usual);
      std::feraiseexcept(FE_DIVBYZERO);
    }
    EXPECT_EQ(Habits(), before);
    EXPECT_EQ(std::fetestexcept(FE_DIVBYZERO), 0);
  }
}

// Values whose sums, products and quotients show how they were rounded, and denormals of either width.
std::vector<RawSubmission> Telling(const TensorSpec& spec, size_t num_keys) {
  std::vector<uint64_t> keys(num_keys);
  for (size_t i = 0; i < num_keys; ++i) keys[i] = i;
  std::vector<RawSubmission> submissions;
  for (int client = 0; client < 3; ++client) {
    std::vector<double> values(num_keys);
    for (size_t i = 0; i < num_keys; ++i) {
      constexpr double kKinds[] = {0.1, -0.7, 0x1p-149, 0x1p-1074, -3.0, 1.0 / 3.0};
      values[i] = kKinds[i % 6] * (spec.dtype == DType::kFloat32 && i % 6 == 3 ? 0.0 : client + 1.0);
    }
    submissions.push_back(Client(spec, absl::StrCat("client ", client), keys, values, 1.0 / (client + 3)));
  }
  return submissions;
}

SPARSEAGG_ENGINE_SUITE(EngineFloatEnvironment);

TEST_P(EngineFloatEnvironment, AnyOfTheCaller_SameBits_AndItStays) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
    for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMax}) {
      for (const Numerics numerics : {Numerics::kCanonical, Numerics::kBinned}) {
        if (numerics == Numerics::kBinned && !IsSum(op)) continue;
        TensorSpec spec = MakeSpec(dtype, op, 1'000'000);
        AggregationSpec& a = spec.aggregation;
        a.weighting = Weighting::kByWeight;
        a.numerics = numerics;
        a.return_weights = true;
        // Few for the smallest work, many for blocks that several threads merge.
        for (const size_t num_keys : {size_t{7}, size_t{60'000}}) {
          if (num_keys > 7 && (GetParam().name != "cpu4" || (kSanitized && op != Op::kMean))) continue;
          const std::vector<RawSubmission> submissions = Telling(spec, num_keys);
          const Verdict verdict = Judge({spec}, submissions);
          for (const Setting setting : kSettings) {
            SCOPED_TRACE(absl::StrCat(Name(dtype), " ", Name(op), " numerics ", static_cast<int>(numerics), ", ",
                                      num_keys, " keys, setting ", static_cast<int>(setting)));
            std::string before;
            std::string after;
            std::optional<Driven> driven;
            {
              const Set set(setting);
              before = Habits();
              driven = Drive(*GetParam().create(), {spec}, submissions);
              after = Habits();
            }
            EXPECT_EQ(Disagreement({spec}, *driven, verdict), "");
            EXPECT_EQ(before, after);
          }
        }
      }
    }
  }
}

// What is accepted does not depend on it either.
TEST(FloatEnvironment, Weights_AreJudgedWithDenormals) {
  TensorSpec floats = MakeSpec(DType::kFloat32, Op::kMean);
  TensorSpec integers = MakeSpec(DType::kInt64, Op::kMean);
  for (TensorSpec* spec : {&floats, &integers}) spec->aggregation.weighting = Weighting::kByWeight;
  const Set set(Setting::kFlushDenormals);
  EXPECT_EQ(ValidateWeight(floats, -0x1p-1074).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidateWeight(integers, 0x1p-1074).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FloatEnvironment, Specs_AreJudgedWithDenormals) {
  TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum);
  spec.aggregation.fill = 0x1p-1074;
  for (const Setting setting : kSettings) {
    const Set set(setting);
    EXPECT_EQ(Validate(spec).code(), absl::StatusCode::kInvalidArgument) << static_cast<int>(setting);
  }
}

// Workers begin with the environment of the thread that made their arena.
TEST(FloatEnvironment, HostThreads_ComputeInTheDefault) {
  for (const int num_threads : {1, 3}) {
    for (const Setting setting : kSettings) {
      const Set set(setting);
      const std::string before = Habits();
      HostThreads threads(num_threads);
      std::vector<std::string> habits(64);
      threads.For(habits.size(), [&](size_t i) { habits[i] = Habits(); });
      EXPECT_EQ(habits, std::vector<std::string>(habits.size()));
      EXPECT_EQ(Habits(), before);
    }
  }
}

}  // namespace
}  // namespace sparseagg::testing
