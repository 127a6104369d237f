// Binned sums: the definition against integers, and the kernels against the definition.
#include "host/base/binned.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "host/cpu/simd/kernels.h"
#include "tests/support/exact_bins.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

constexpr int kFamilies = 7;

double FromBits(uint64_t bits) { return std::bit_cast<double>(bits); }

// A term of one of the families of multisets. `spread`: of the whole multiset.
double RandomTerm(Rng& rng, int family, double spread) {
  const double sign = rng.Coin() ? 1.0 : -1.0;
  const double unit = sign * (1.0 + rng.Unit());
  switch (family) {
    case 0:  // of about one magnitude
      return unit;
    case 1:  // gradients with weights of samples
      return unit * 0x1p-6 * rng.Unit() * static_cast<double>(1 + rng.Below(500));
    case 2:  // wide
      return std::ldexp(unit, static_cast<int>(rng.Between(-200, 200)));
    case 3:  // around the borders of bins of 40 and 44 bits
      return std::ldexp(sign * rng.Pick({1.0, 1.0 - 0x1p-53, 1.0 + 0x1p-52}),
                        static_cast<int>(rng.Between(-3, 3)) + 40 * static_cast<int>(rng.Between(-5, 5)));
    case 4:  // halves of units: ties
      return sign * static_cast<double>(rng.Below(9)) * spread;
    case 5:  // subnormal and tiny, zeros
      return rng.OneIn(4) ? sign * 0.0 : FromBits((rng.Bits() >> 1) % (uint64_t{200} << 52)) * sign;
    default:  // any finite number, the largest ones included
      const double any = FromBits(rng.Bits());
      return std::isfinite(any) ? any : sign * std::numeric_limits<double>::max();
  }
}

std::vector<double> RandomTerms(Rng& rng, int family) {
  const double spread = std::ldexp(1.0, static_cast<int>(rng.Between(-1074, 900)));
  std::vector<double> terms(1 + rng.Below(40));
  for (double& term : terms) term = RandomTerm(rng, family, spread);
  if (rng.OneIn(3)) {  // cancel some
    const size_t size = terms.size();
    for (size_t i = 0; i < size; i += 2) terms.push_back(-terms[i]);
  }
  return terms;
}

template <class Sum>
Sum SumOf(const std::vector<double>& terms) {
  Sum sum;
  for (const double term : terms) sum.Add(term);
  return sum;
}

// Sums of random parts, merged as a random tree.
template <class Sum>
Sum TreeSum(Rng& rng, std::vector<double> terms) {
  rng.Shuffle(terms);
  std::vector<Sum> parts(1 + rng.Below(6));
  for (const double term : terms) parts[rng.Below(parts.size())].Add(term);
  while (parts.size() > 1) {
    std::swap(parts[rng.Below(parts.size())], parts.back());
    const Sum last = parts.back();
    parts.pop_back();
    parts[rng.Below(parts.size())].Merge(last);
  }
  return parts[0];
}

template <class Sum>
void ExpectEqual(const Sum& expected, const Sum& sum) {
  EXPECT_EQ(expected.top, sum.top);
  for (int k = 0; k < Sum::kBins; ++k) EXPECT_EQ(expected.digits[k], sum.digits[k]) << "bin " << k << " from the top";
}

template <class Sum>
class BinnedSumTest : public ::testing::Test {};
using BothSums = ::testing::Types<NarrowBinnedSum, WideBinnedSum>;
TYPED_TEST_SUITE(BinnedSumTest, BothSums);

TYPED_TEST(BinnedSumTest, AnyOrderAndTree_SameStateAndTheExactValueRoundedOnce) {
  for (uint64_t seed = 0; seed < 7000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    const std::vector<double> terms = RandomTerms(rng, static_cast<int>(seed % kFamilies));
    const auto sum = SumOf<TypeParam>(terms);
    for (int i = 0; i < 4; ++i) ExpectEqual(sum, TreeSum<TypeParam>(rng, terms));
    ExactBins exact(TypeParam::kBins, TypeParam::kBits);
    for (const double term : terms) exact.Add(term);
    ASSERT_EQ(std::bit_cast<uint64_t>(exact.Value()), std::bit_cast<uint64_t>(sum.Value() + 0.0)) << sum.Value();
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(BinnedSumTest, SpecialTerms_StayWhateverFollows) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(infinity, SumOf<TypeParam>({1.0, infinity, -1e300}).Value());
  EXPECT_EQ(-infinity, SumOf<TypeParam>({-infinity, 1e300, -infinity}).Value());
  for (const std::vector<double>& terms :
       {std::vector<double>{nan, 1.0}, {infinity, -infinity}, {1.0, nan, infinity}}) {
    EXPECT_EQ(0x7ff8000000000000, std::bit_cast<uint64_t>(SumOf<TypeParam>(terms).Value()));
  }
  EXPECT_EQ(0u, std::bit_cast<uint64_t>(SumOf<TypeParam>({-0.0, -0.0}).Value()));
  EXPECT_EQ(infinity, SumOf<TypeParam>({std::numeric_limits<double>::max(), 0x1p1023}).Value());
}

TYPED_TEST(BinnedSumTest, MostTerms_LeaveNoCarryBehind) {
  // The largest digit, as often as is allowed.
  TypeParam sum;
  const double units = std::ldexp(1.0, TypeParam::kBits - 1) - 1.0;
  sum.Add(std::ldexp(units, -1074 + TypeParam::kBits * (TypeParam::kBins - 1)));
  TypeParam all = sum;
  const uint64_t most = TypeParam::kMaxTerms;
  for (int64_t& digit : all.digits) digit *= static_cast<int64_t>(most);
  const double expected =
      std::ldexp(units * static_cast<double>(most), -1074 + TypeParam::kBits * (TypeParam::kBins - 1));
  EXPECT_EQ(expected, all.Value());
}

// Random values for as many sums.
template <class Sum, typename Value>
void CheckKernel(uint64_t seed, DType dtype) {
  Rng rng(seed);
  const size_t count = 1 + rng.Below(70);
  const size_t num_sources = 1 + rng.Below(9);
  std::vector<std::vector<Value>> values(num_sources, std::vector<Value>(count));
  std::vector<cpu::BinnedSource> sources(num_sources);
  std::vector<Sum> expected(count);
  const bool has_special = rng.OneIn(4);
  const bool is_mixed = rng.Coin();  // otherwise neighbours mostly have the same bins
  const bool has_factors = rng.OneIn(3);
  for (size_t s = 0; s < num_sources; ++s) {
    const cpu::ValueScale scale{has_factors ? rng.Pick({1.0, 0.3}) : 1.0, rng.Pick({1.0, 3.7, 0x1p900, 0.0})};
    sources[s] = {reinterpret_cast<const std::byte*>(values[s].data()), scale};
    for (size_t i = 0; i < count; ++i) {
      double term = RandomTerm(rng, static_cast<int>((seed + (is_mixed ? i : 0)) % kFamilies), 1.0);
      if (has_special && rng.OneIn(20)) term = rng.Pick({HUGE_VAL, -HUGE_VAL, std::nan("")});
      values[s][i] = static_cast<Value>(term);
      expected[i].Add(static_cast<double>(values[s][i]) * scale.factor * scale.weight);
    }
  }
  std::vector<std::vector<int64_t>> digits(Sum::kBins, std::vector<int64_t>(count + cpu::kVectorSlack));
  std::vector<uint8_t> tops(count + cpu::kVectorSlack, Sum().top);
  cpu::BinnedColumns sums;
  for (int k = 0; k < Sum::kBins; ++k) sums.digits[k] = digits[static_cast<size_t>(k)].data();
  sums.tops = tops.data();
  const size_t first = rng.Below(num_sources + 1);
  cpu::AddBinned(sums, dtype, sources.data() + first, num_sources - first, count);
  cpu::AddBinned(sums, dtype, sources.data(), first, count);
  std::vector<double> out(count + 1, 5.0);
  cpu::BinnedValues(sums, dtype, count, out.data());
  EXPECT_EQ(5.0, out[count]);
  for (size_t i = 0; i < count; ++i) {
    ExpectEqual(expected[i], cpu::BinnedAt<Sum>(sums, i));
    EXPECT_EQ(std::bit_cast<uint64_t>(expected[i].Value()), std::bit_cast<uint64_t>(out[i])) << out[i];
  }
}

TEST(BinnedKernelsTest, EverySimdTarget_GivesTheSumsOfTheDefinition) {
  for (const std::string& target : cpu::SimdTargets()) {
    ASSERT_TRUE(cpu::ForceSimdTarget(target).ok());
    for (uint64_t seed = 0; seed < 2000 && !HasFailure(); ++seed) {
      SCOPED_TRACE(::testing::Message() << target << ", seed " << seed);
      CheckKernel<NarrowBinnedSum, float>(seed, DType::kFloat32);
      CheckKernel<WideBinnedSum, double>(seed, DType::kFloat64);
    }
  }
  ASSERT_TRUE(cpu::ForceSimdTarget("").ok());
}

}  // namespace
}  // namespace sparseagg::testing
