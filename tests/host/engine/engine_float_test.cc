// Float sums: order, rounding, signs, precision.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/host/engine/contract.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;

SPARSEAGG_CONTRACT_SUITE(FloatContract);

TensorSpec Float64Sum() { return MakeSpec(DType::kFloat64, Op::kSum); }

TEST_P(FloatContract, Canonical_FoldsInOrderOfClientId_NotOfArrival) {
  const TensorSpec spec = Float64Sum();
  // (1e16 + 1) − 1e16 = 0 and (1e16 − 1e16) + 1 = 1.
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "c", {1}, {-1e16}), Client(spec, "b", {1}, {1}),
                                    Client(spec, "a", {1}, {1e16})})),
              ElementsAre(0.0));
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "c", {1}, {1}), Client(spec, "b", {1}, {-1e16}),
                                    Client(spec, "a", {1}, {1e16})})),
              ElementsAre(1.0));
}

TEST_P(FloatContract, Canonical_ClientIds_CompareAsUnsignedBytes) {
  const TensorSpec spec = Float64Sum();
  // In ascending order; the one in the middle of each three is lost between 1e16 and −1e16.
  const std::vector<std::vector<std::string>> ascending = {{"B", "a", "b"},
                                                           {"10", "11", "9"},
                                                           {"a", "aa", "b"},
                                                           {"a", "a\x01", "aa"},
                                                           {"\x7f", "\x80", "\xff"},
                                                           {"a", std::string("a\0", 2), std::string("a\0b", 3)},
                                                           {" ", "client", "\xc3\xa9"}};
  for (const std::vector<std::string>& ids : ascending) {
    SCOPED_TRACE(ids[0] + " " + ids[1] + " " + ids[2]);
    EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, ids[1], {1}, {1}), Client(spec, ids[2], {1}, {-1e16}),
                                      Client(spec, ids[0], {1}, {1e16})})),
                ElementsAre(0.0));
    EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, ids[2], {1}, {1}), Client(spec, ids[1], {1}, {-1e16}),
                                      Client(spec, ids[0], {1}, {1e16})})),
                ElementsAre(1.0));
  }
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedBeforeTheyAreAdded) {
  const TensorSpec spec = Float64Sum();
  // 1e16 + (1 + 1) = 1e16 + 2, while (1e16 + 1) + 1 = 1e16.
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {7}, {1e16}), Client(spec, "b", {7, 8, 7}, {1, 5, 1})})),
              ElementsAre(1e16 + 2.0, 5.0));
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedInOrderOfOccurrence) {
  const TensorSpec spec = Float64Sum();
  const double big = 0x1p53;  // big + 1 is a tie, which goes to big
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {9, 4, 9, 3, 9}, {big, 0, 1, 0, 1})})), ElementsAre(0, 0, big));
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {9, 4, 9, 3, 9}, {1, 0, 1, 0, big})})),
              ElementsAre(0, 0, big + 2.0));
}

TEST_P(FloatContract, Canonical_Duplicates_AreFoldedBeforeTheyAreWeighted) {
  TensorSpec spec = Float64Sum();
  spec.aggregation.weighting = Weighting::kByWeight;
  // (2^53 + 1)·3 with the sum rounded to 2^53; the other way round it is 3·2^53 + 3, rounded to 3·2^53 + 4.
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1, 1}, {0x1p53, 1}, 3.0)})), ElementsAre(3.0 * 0x1p53));
}

TEST_P(FloatContract, Canonical_ProductIsRounded_NotFused) {
  TensorSpec spec = Float64Sum();
  spec.aggregation.weighting = Weighting::kByWeight;
  // (1 + 2^-30)² = 1 + 2^-29 + 2^-60, whose last term the rounding of the product drops and a fused add would keep.
  const double x = 1.0 + 0x1p-30;
  EXPECT_THAT(FloatsOf(Merge(spec, {Client(spec, "a", {1}, {-(1.0 + 0x1p-29)}, 1.0), Client(spec, "b", {1}, {x}, x)})),
              ElementsAre(0.0));
}

TEST_P(FloatContract, Canonical_WeightsAreFoldedInOrderOfClientId) {
  TensorSpec spec = MakeSpec(DType::kFloat64, Op::kMean);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.return_weights = true;
  // Σw = (2^53 + 1) + 1 = 2^53 in this order, 2^53 + 2 in the other.
  const Result lost = Merge(
      spec, {Client(spec, "c", {1}, {0}, 1.0), Client(spec, "b", {1}, {0}, 1.0), Client(spec, "a", {1}, {1}, 0x1p53)});
  EXPECT_THAT(WeightsOf(lost), ElementsAre(0x1p53));
  EXPECT_THAT(FloatsOf(lost), ElementsAre(1.0));
  const Result kept = Merge(
      spec, {Client(spec, "c", {1}, {1}, 0x1p53), Client(spec, "b", {1}, {0}, 1.0), Client(spec, "a", {1}, {0}, 1.0)});
  EXPECT_THAT(WeightsOf(kept), ElementsAre(0x1p53 + 2.0));
  EXPECT_THAT(FloatsOf(kept), ElementsAre(0x1p53 / (0x1p53 + 2.0)));
}

TEST_P(FloatContract, Sum_RoundsOnlyOnce_Float32) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum);
  // 1 + 2^-24 is a tie in float32; the third term decides it, unless a float32 sum has forgotten the second.
  const Result result =
      Merge(spec, {Client(spec, "a", {1}, {1}), Client(spec, "b", {1}, {0x1p-24}), Client(spec, "c", {1}, {0x1p-50})});
  EXPECT_THAT(FloatsOf(result), ElementsAre(1.0 + 0x1p-23));
}

TEST_P(FloatContract, Sum_RoundsOnlyOnce_HalfAndBFloat16) {
  // Just above a tie of the 16-bit format, by less than float32 can see.
  const TensorSpec half = MakeSpec(DType::kFloat16, Op::kMean);
  // (1 + 2^-11 + 2^-35)·2^0 as a sum of float16 numbers: 2^-24 is the smallest. Divide by N = 2^11 instead.
  std::vector<RawSubmission> submissions = {Client(half, "0", {1}, {2048}), Client(half, "1", {1}, {1}),
                                            Client(half, "2", {1}, {0x1p-24})};
  for (int i = 3; i < 2048; ++i) submissions.push_back(Client(half, "n" + std::to_string(i), {}, {}));
  EXPECT_THAT(BitsOf(Merge(half, submissions)), ElementsAre(0x3c01u));  // 1 + 2^-10

  const TensorSpec brain = MakeSpec(DType::kBFloat16, Op::kSum);
  EXPECT_THAT(BitsOf(Merge(brain, {Client(brain, "a", {1}, {1}), Client(brain, "b", {1}, {0x1p-8}),
                                   Client(brain, "c", {1}, {0x1p-30})})),
              ElementsAre(0x3f81u));  // 1 + 2^-7
  EXPECT_THAT(BitsOf(Merge(brain, {Client(brain, "a", {1}, {1}), Client(brain, "b", {1}, {0x1p-8})})),
              ElementsAre(0x3f80u))
      << "a tie goes to even";
}

TEST_P(FloatContract, Mean_OfMinusOne_RoundsToEachDType) {
  const std::vector<std::pair<DType, uint64_t>> table = {{DType::kFloat32, 0xbeaaaaab},
                                                         {DType::kFloat16, 0xb555},
                                                         {DType::kBFloat16, 0xbeab},
                                                         {DType::kFloat64, 0xbfd5555555555555}};
  for (const auto& [dtype, bits] : table) {
    const TensorSpec spec = MakeSpec(dtype, Op::kMean);
    EXPECT_THAT(
        BitsOf(Merge(spec, {Client(spec, "a", {1}, {-1}), Client(spec, "b", {}, {}), Client(spec, "c", {}, {})})),
        ElementsAre(bits));
  }
}

TEST_P(FloatContract, ResultDType_AsksForFloat32OrFloat64) {
  TensorSpec spec = MakeSpec(DType::kFloat16, Op::kSum);
  spec.aggregation.result_dtype = DType::kFloat32;
  Result result = Merge(spec, {Client(spec, "a", {1}, {60000}), Client(spec, "b", {1}, {60000})});
  EXPECT_EQ(result.dtype, DType::kFloat32);
  EXPECT_THAT(FloatsOf(result), ElementsAre(120000.0));

  spec = MakeSpec(DType::kFloat32, Op::kSum);
  spec.aggregation.result_dtype = DType::kFloat64;
  result = Merge(spec, {Client(spec, "a", {1}, {1}), Client(spec, "b", {1}, {0x1p-40})});
  EXPECT_EQ(result.dtype, DType::kFloat64);
  EXPECT_THAT(FloatsOf(result), ElementsAre(1.0 + 0x1p-40));

  spec = MakeSpec(DType::kFloat64, Op::kMax);
  spec.aggregation.result_dtype = DType::kFloat32;
  result = Merge(spec, {Client(spec, "a", {1}, {0.1}), Client(spec, "b", {1}, {1e300})});
  EXPECT_EQ(result.dtype, DType::kFloat32);
  EXPECT_THAT(FloatsOf(result), ElementsAre(HUGE_VAL));
}

TEST_P(FloatContract, Result_TooLargeForItsDType_IsInfinite) {
  const TensorSpec half = MakeSpec(DType::kFloat16, Op::kSum);
  // 65504 is the largest; what is nearer to 2^16 than to it overflows, the tie included.
  EXPECT_THAT(FloatsOf(Merge(half, {Client(half, "a", {1, 2, 3}, {65504, 65504, -65504}),
                                    Client(half, "b", {1, 2, 3}, {15, 16, -16})})),
              ElementsAre(65504.0, HUGE_VAL, -HUGE_VAL));
  const TensorSpec wide = Float64Sum();
  EXPECT_THAT(FloatsOf(Merge(wide, {Client(wide, "a", {1}, {1.7e308}), Client(wide, "b", {1}, {1.7e308})})),
              ElementsAre(HUGE_VAL));
}

TEST_P(FloatContract, Denormals_AreKept) {
  const std::vector<std::pair<DType, double>> table = {{DType::kFloat32, 0x1p-149},
                                                       {DType::kFloat16, 0x1p-24},
                                                       {DType::kBFloat16, 0x1p-133},
                                                       {DType::kFloat64, 0x1p-1074}};
  for (const auto& [dtype, smallest] : table) {
    SCOPED_TRACE(Name(dtype));
    for (const Op op : {Op::kSum, Op::kMax, Op::kMean}) {
      const TensorSpec spec = MakeSpec(dtype, op);
      const Result result = Merge(spec, {Client(spec, "a", {1}, {smallest}), Client(spec, "b", {1}, {3 * smallest})});
      EXPECT_THAT(BitsOf(result), ElementsAre(op == Op::kSum ? 4u : op == Op::kMax ? 3u : 2u));
    }
  }
}

TEST_P(FloatContract, Denormals_RoundToEven) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    SCOPED_TRACE(Name(dtype));
    const TensorSpec spec = MakeSpec(dtype, Op::kMean);
    const double smallest = dtype == DType::kFloat32    ? 0x1p-149
                            : dtype == DType::kFloat16  ? 0x1p-24
                            : dtype == DType::kBFloat16 ? 0x1p-133
                                                        : 0x1p-1074;
    // Half of 1, 3 and 5 units: 0, 2 and 2.
    const Result result =
        Merge(spec, {Client(spec, "a", {1, 2, 3}, {smallest, 3 * smallest, 5 * smallest}), Client(spec, "b", {}, {})});
    EXPECT_THAT(BitsOf(result), ElementsAre(0u, 2u, 2u));
  }
}

// ---- no −0.0

TEST_P(FloatContract, NegativeZero_NeverInAResult) {
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kMin, Op::kMax}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
      SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)));
      const TensorSpec spec = MakeSpec(dtype, op);
      EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1, 2, 3, 3}, {-0.0, -0.0, -0.0, -0.0}),
                                      Client(spec, "b", {2, 3}, {-0.0, 0.0})})),
                  ElementsAre(0u, 0u, 0u));
    }
  }
}

TEST_P(FloatContract, NegativeZero_FromUnderflow_IsNormalised) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const double smallest = dtype == DType::kFloat32 ? 0x1p-149 : 0x1p-1074;
    const TensorSpec spec = MakeSpec(dtype, Op::kMean);
    EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {-smallest}), Client(spec, "b", {}, {})})), ElementsAre(0u))
        << Name(dtype);
  }
  TensorSpec narrowed = MakeSpec(DType::kFloat64, Op::kMin);
  narrowed.aggregation.result_dtype = DType::kFloat32;
  EXPECT_THAT(BitsOf(Merge(narrowed, {Client(narrowed, "a", {1}, {-1e-300})})), ElementsAre(0u));
}

TEST_P(FloatContract, NegativeZero_FromZeroWeight_IsNormalised) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum);
  spec.aggregation.weighting = Weighting::kByWeight;
  EXPECT_THAT(BitsOf(Merge(spec, {Client(spec, "a", {1}, {-5}, 0.0)})), ElementsAre(0u));
}

// ---- precision: what float32 sums get wrong

TEST_P(FloatContract, Sum_OfManyTenths_IsWithinOneUlp) {
  // 2^20 contributors, each adding float32 0.1 at one key. Not through Merge, to keep the reference's copies away.
  if (is_reference()) GTEST_SKIP() << "an engine's matter";
  constexpr uint64_t kCount = uint64_t{1} << 20;
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 1000);
  const std::unique_ptr<Engine> engine = GetParam().create();
  auto aggregation = Aggregation::Create(*engine, {spec});
  ASSERT_TRUE(aggregation.ok());
  const uint32_t key = 123;
  const float tenth = 0.1f;
  const UpdateColumns columns = {absl::MakeConstSpan(&key, 1), reinterpret_cast<const std::byte*>(&tenth), nullptr};
  for (uint64_t i = 0; i < kCount; ++i) {
    auto update = ValidatedUpdate::Create(spec, columns, 1.0);
    ASSERT_TRUE(update.ok());
    auto prepared = (*aggregation)->Prepare({*std::move(update)});
    ASSERT_TRUE(prepared.ok());
    // Descending ids, so that the canonical order is the reverse of the order of arrival.
    ASSERT_TRUE((*aggregation)->Add(absl::StrFormat("%020u", kCount - i), *std::move(prepared)).ok());
  }
  const auto results = std::move(**aggregation).Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  const double exact = static_cast<double>(tenth) * static_cast<double>(kCount);  // a power of two: exact
  const auto nearest = static_cast<float>(exact);
  const std::vector<double> values = FloatsOf(results->front());
  ASSERT_EQ(values.size(), 1u);
  EXPECT_GE(values[0], std::nextafter(nearest, 0.0f));
  EXPECT_LE(values[0], std::nextafter(nearest, HUGE_VALF));
}

TEST_P(FloatContract, Sum_Of4096BFloat16Ones_Is4096) {
  for (const bool as_duplicates : {false, true}) {
    const TensorSpec spec = MakeSpec(DType::kBFloat16, Op::kSum, 100);
    std::vector<RawSubmission> submissions;
    if (as_duplicates) {
      submissions = {Client(spec, "a", std::vector<uint64_t>(4096, 7), std::vector<double>(4096, 1.0))};
    } else {
      for (int i = 0; i < 4096; ++i) submissions.push_back(Client(spec, std::to_string(i), {7}, {1}));
    }
    EXPECT_THAT(FloatsOf(Merge(spec, submissions)), ElementsAre(4096.0));
  }
}

}  // namespace
}  // namespace sparseagg::testing
