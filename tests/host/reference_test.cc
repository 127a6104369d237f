// The reference's number formats, scales and comparisons against hand-computed values.
//
// Its results are judged by the contract suite, which runs on the reference as on an engine.
#include "tests/support/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/fixed_point.h"
#include "tests/support/fold.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/results.h"
#include "tests/support/shrink.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInf = std::numeric_limits<double>::infinity();

double ReadBits(DType dtype, uint64_t bits) {
  std::string bytes;
  AppendBits(dtype, bits, bytes);
  return ReadFloat(dtype, bytes.data());
}

// ---- number formats

TEST(ReferenceValues, ReadFloat_KnownBits) {
  EXPECT_EQ(ReadBits(DType::kFloat16, 0x3c00), 1.0);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0xc000), -2.0);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0x7bff), 65504.0);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0x0001), 0x1p-24);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0x0400), 0x1p-14);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0x3555), 0.333251953125);
  EXPECT_EQ(ReadBits(DType::kFloat16, 0xfc00), -kInf);
  EXPECT_TRUE(std::isnan(ReadBits(DType::kFloat16, 0x7c01)));
  EXPECT_EQ(ReadBits(DType::kBFloat16, 0x3f80), 1.0);
  EXPECT_EQ(ReadBits(DType::kBFloat16, 0x4049), 3.140625);
  EXPECT_EQ(ReadBits(DType::kBFloat16, 0x0001), 0x1p-133);
  EXPECT_EQ(ReadBits(DType::kBFloat16, 0x7f7f), 0x1.fep127);
  EXPECT_TRUE(std::isnan(ReadBits(DType::kBFloat16, 0xffff)));
  EXPECT_TRUE(std::signbit(ReadBits(DType::kBFloat16, 0x8000)));
}

TEST(ReferenceValues, ReadFloat_IsWhatTheHardwareReads) {
  Rng rng(TestSeed(1));
  for (int i = 0; i < 100000; ++i) {
    const uint64_t bits = rng.Bits();
    const auto narrow = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    const auto wide = std::bit_cast<double>(bits);
    if (!std::isnan(narrow)) {
      ASSERT_EQ(ReadBits(DType::kFloat32, bits & 0xffffffff), narrow);
    }
    if (!std::isnan(wide)) {
      ASSERT_EQ(ReadBits(DType::kFloat64, bits), wide);
    }
  }
}

TEST(ReferenceValues, RoundToBits_Float32And64_IsWhatTheHardwareRounds) {
  Rng rng(TestSeed(2));
  for (int i = 0; i < 200000; ++i) {
    // Any double, and doubles around the range of float32, ties included.
    double x = std::bit_cast<double>(rng.Bits());
    if (i % 2 == 0)
      x = std::ldexp(static_cast<double>(rng.Between(-(1 << 26), 1 << 26)), static_cast<int>(rng.Between(-180, 110)));
    if (std::isnan(x)) continue;
    const float rounded = static_cast<float>(x) == 0.0f ? 0.0f : static_cast<float>(x);
    ASSERT_EQ(RoundToBits(DType::kFloat32, x), std::bit_cast<uint32_t>(rounded)) << x;
    ASSERT_EQ(RoundToBits(DType::kFloat64, x), std::bit_cast<uint64_t>(x == 0.0 ? 0.0 : x)) << x;
  }
}

TEST(ReferenceValues, RoundToBits_16Bits_ReturnsEveryNumberUnchanged) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const double x = ReadBits(dtype, bits);
      if (std::isnan(x) || (x == 0.0 && std::signbit(x))) continue;
      ASSERT_EQ(RoundToBits(dtype, x), bits);
    }
  }
}

TEST(ReferenceValues, RoundToBits_16Bits_RoundsToNearestEven) {
  // Between every two neighbours: the tie goes to the even one, anything next to it to the nearer.
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const uint32_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
      const double low = ReadBits(dtype, bits);
      const double high = ReadBits(dtype, bits + 1);
      const double tie = (low + high) / 2;
      ASSERT_EQ(RoundToBits(dtype, tie), bits + (bits & 1));
      ASSERT_EQ(RoundToBits(dtype, std::nextafter(tie, 0.0)), bits);
      ASSERT_EQ(RoundToBits(dtype, std::nextafter(tie, kInf)), bits + 1);
      ASSERT_EQ(RoundToBits(dtype, -tie), bits + (bits & 1) == 0 ? 0 : (bits + (bits & 1)) | 0x8000);
    }
  }
}

TEST(ReferenceValues, RoundToBits_Specials) {
  EXPECT_EQ(RoundToBits(DType::kFloat16, 65519.99), 0x7bffu);
  EXPECT_EQ(RoundToBits(DType::kFloat16, 65520.0), 0x7c00u);
  EXPECT_EQ(RoundToBits(DType::kFloat16, -1e300), 0xfc00u);
  EXPECT_EQ(RoundToBits(DType::kBFloat16, 3.4e38), 0x7f80u);
  EXPECT_EQ(RoundToBits(DType::kFloat32, -0.0), 0u);
  EXPECT_EQ(RoundToBits(DType::kFloat32, -1e-300), 0u);
  EXPECT_EQ(RoundToBits(DType::kFloat16, std::nan("")), 0x7e00u);
  EXPECT_EQ(RoundToBits(DType::kBFloat16, -std::nan("")), 0x7fc0u);
  EXPECT_EQ(RoundToBits(DType::kFloat32, std::nan("")), 0x7fc00000u);
  EXPECT_EQ(RoundToBits(DType::kFloat64, std::nan("")), 0x7ff8000000000000u);
}

TEST(ReferenceValues, ReadInteger_Signs) {
  const auto read = [](DType dtype, uint64_t bits) {
    std::string bytes;
    AppendBits(dtype, bits, bytes);
    return ReadInteger(dtype, bytes.data());
  };
  EXPECT_TRUE(read(DType::kInt32, 0xffffffff) == -1);
  EXPECT_TRUE(read(DType::kInt32, 0x80000000) == -2147483648LL);
  EXPECT_TRUE(read(DType::kUInt32, 0xffffffff) == 4294967295LL);
  EXPECT_TRUE(read(DType::kInt64, ~uint64_t{0}) == -1);
  EXPECT_TRUE(read(DType::kInt64, uint64_t{1} << 63) == -(Int128{1} << 63));
  EXPECT_TRUE(read(DType::kUInt64, ~uint64_t{0}) == (Int128{1} << 64) - 1);
}

TEST(ReferenceValues, Pack_IsLittleEndian) {
  EXPECT_EQ(Pack(DType::kFloat32, {1.0}), std::string("\x00\x00\x80\x3f", 4));
  EXPECT_EQ(Pack(DType::kBFloat16, {1.0, -0.0}), std::string("\x80\x3f\x00\x80", 4));
  EXPECT_EQ(Pack(DType::kInt32, {-2}), std::string("\xfe\xff\xff\xff", 4));
  EXPECT_EQ(Pack(DType::kUInt64, {0x1p63}), std::string("\0\0\0\0\0\0\0\x80", 8));
}

TEST(ReferenceValues, CeilLog2_AsWritten) {
  EXPECT_EQ(CeilLog2(1.0), 0);
  EXPECT_EQ(CeilLog2(1.5), 1);
  EXPECT_EQ(CeilLog2(std::nextafter(1.0, 2.0)), 1);
  EXPECT_EQ(CeilLog2(0.5), -1);
  EXPECT_EQ(CeilLog2(0.6), 0);
  EXPECT_EQ(CeilLog2(0x1p-900), -900);
  EXPECT_EQ(CeilLog2(0x1p900), 900);
  EXPECT_EQ(CeilLog2(uint64_t{1}), 0);
  EXPECT_EQ(CeilLog2(uint64_t{3}), 2);
  EXPECT_EQ(CeilLog2(uint64_t{1} << 63), 63);
  EXPECT_EQ(CeilLog2((uint64_t{1} << 63) + 1), 64);
}

TEST(ReferenceValues, FixedPoint_RoundsHalfToEven) {
  const FixedPoint quarter{2};
  EXPECT_TRUE(quarter.FromDouble(0.125) == 0);
  EXPECT_TRUE(quarter.FromDouble(0.375) == 2);
  EXPECT_TRUE(quarter.FromDouble(-0.375) == -2);
  EXPECT_EQ(quarter.ToDouble(-6), -1.5);
  EXPECT_EQ(FixedPoint{-10}.ToDouble(3), 3072.0);
  EXPECT_EQ(FixedPoint{0}.ToDouble((Int128{1} << 53) + 1), 0x1p53);
}

// ---- folding

TEST(ReferenceFold, Duplicates_AddUpInOrderOfOccurrence) {
  TensorSpec spec;
  spec.dtype = DType::kFloat64;
  spec.row_width = 2;
  const std::vector<FoldedRow> rows =
      Fold(spec, {{9, 4, 9, 9}, Pack(DType::kFloat64, {0x1p53, 1, 7, -0.0, 1, 2, 1, 3})});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].key, 4u);
  EXPECT_THAT(rows[0].floats, ElementsAre(7, 0));
  EXPECT_FALSE(std::signbit(rows[0].floats[1]));
  EXPECT_EQ(rows[1].key, 9u);
  EXPECT_THAT(rows[1].floats, ElementsAre(0x1p53, 6));
}

// ---- comparing

Result SparseResult() {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 10;
  spec.aggregation.return_counts = true;
  spec.aggregation.return_weights = true;
  return Reference({spec}, {{"a", 1.0, {{{3, 5}, Pack(DType::kFloat32, {1, 2})}}}})->front();
}

TEST(ReferenceDiff, EveryField_IsCompared) {
  const Result expected = SparseResult();
  EXPECT_EQ(Diff(expected, expected), "");
  struct Change {
    std::string word;  // in the message
    void (*apply)(Result&);
  };
  const std::vector<Change> changes = {
      {"layout", [](Result& r) { r.layout = Layout::kDense; }},
      {"dtype", [](Result& r) { r.dtype = DType::kInt32; }},
      {"has_values", [](Result& r) { r.has_values = false; }},
      {"row_width", [](Result& r) { r.row_width = 2; }},
      {"num_rows", [](Result& r) { r.num_rows = 11; }},
      {"stored keys", [](Result& r) { r.num_keys = 3; }},
      {"key 5: key 6", [](Result& r) { std::get<0>(r.keys)[1] = 6; }},
      {"stored key",
       [](Result& r) {
         r.keys = Column<uint64_t>({3, 5});
       }},
      {"bits 0x3f800001", [](Result& r) { r.values[0] = std::byte{1}; }},
      {"bytes of values", [](Result& r) { r.values.resize(7); }},
      {"count 2, expected 1", [](Result& r) { r.counts[1] = 2; }},
      {"number of counts", [](Result& r) { r.counts.clear(); }},
      {"weight -0", [](Result& r) { r.weights[0] = -0.0; }},
      {"number of weights", [](Result& r) { r.weights.push_back(1); }},
      {"fixed_point_shift", [](Result& r) { r.fixed_point_shift = 3; }},
  };
  for (const Change& change : changes) {
    Result changed = expected;
    change.apply(changed);
    EXPECT_THAT(Diff(changed, expected), HasSubstr(change.word));
    if (change.word != "bytes of values") {
      EXPECT_NE(ResultDigest(changed), ResultDigest(expected)) << change.word;
    }
  }
  EXPECT_THAT(Diff(std::vector<Result>{expected}, std::vector<Result>{}), HasSubstr("tensors: 1, expected 0"));
}

TEST(ReferenceJudge, Reference_GivesTheFirstFailureOrTheResults) {
  TensorSpec spec;
  spec.name = "sums";
  spec.dtype = DType::kInt64;
  const auto max = std::numeric_limits<int64_t>::max();
  const RawSubmission a = {"a", 1.0, {{{8, 6}, PackIntegers(DType::kInt64, {max, max})}}};
  const RawSubmission b = {"b", 1.0, {{{6, 8}, PackIntegers(DType::kInt64, {1, 1})}}};
  const auto failed = Reference({spec}, {a, b});
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("tensor 'sums': key 6"));
  const auto results = Reference({spec}, {a});
  ASSERT_TRUE(results.ok());
  EXPECT_THAT(IntegersOf(results->front()), ElementsAre(max, max));
  EXPECT_THAT(Flaws({spec}, a), IsEmpty());
}

// ---- shrinking

TEST(ReferenceShrink, FindsTheOneTupleThatMatters) {
  Case c = RandomCase(5);
  for (uint64_t seed = 6; c.submissions.size() < 8; ++seed) c = RandomCase(seed);
  c.specs.resize(1);
  c.specs[0].row_width = 1;
  c.specs[0].dtype = DType::kFloat32;
  for (RawSubmission& s : c.submissions) {
    s.tensors = {{{1, 2, 3, 4, 5}, Pack(DType::kFloat32, {1, 2, 3, 4, 5})}};
  }
  c.submissions[5].tensors[0].keys[3] = 77;
  const Case small = Shrink(c, [](const Case& candidate) {
    for (const RawSubmission& s : candidate.submissions) {
      for (const uint64_t key : s.tensors[0].keys) {
        if (key == 77) return true;
      }
    }
    return false;
  });
  ASSERT_EQ(small.submissions.size(), 1u);
  EXPECT_THAT(small.submissions[0].tensors[0].keys, ElementsAre(77));
  EXPECT_EQ(small.submissions[0].tensors[0].values, Pack(DType::kFloat32, {4}));
}

}  // namespace
}  // namespace sparseagg::testing
