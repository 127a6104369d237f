// Shapes at the boundaries of blocks, radix digits and vectors, compared with the reference.
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/host/engine/contract.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

SPARSEAGG_ENGINE_SUITE(ShapeContract);

TensorSpec Plain(uint64_t num_rows, uint32_t row_width = 1) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, num_rows, row_width);
  spec.aggregation.return_counts = true;
  return spec;
}

RawSubmission WithUnitValues(const TensorSpec& spec, std::string id, std::vector<uint64_t> keys, Rng& rng) {
  RawTensor raw;
  raw.values = RandomValues(rng, spec.dtype, keys.size() * spec.row_width, ValueStyle::kUnit);
  raw.keys = std::move(keys);
  return {std::move(id), 1.0, {std::move(raw)}};
}

TEST_P(ShapeContract, TupleCounts_AroundPowersOfTwo) {
  Rng rng(TestSeed(1));
  for (const size_t count : {0,  1,  2,   3,   7,   8,    9,    15,   16,    17,    31,    32,    33,    63,
                             64, 65, 255, 256, 257, 1023, 1024, 1025, 16383, 16384, 16385, 65535, 65536, 65537}) {
    for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kShuffled}) {
      for (const uint64_t num_rows : {uint64_t{100000}, uint64_t{0}}) {
        SCOPED_TRACE(std::to_string(count) + " tuples of " + std::to_string(num_rows));
        const TensorSpec spec = Plain(num_rows);
        std::vector<RawSubmission> submissions;
        for (const char* id : {"a", "b"}) {
          std::vector<uint64_t> keys = RandomKeys(rng, num_rows, count, KeyStyle::kUniform, order);
          submissions.push_back(WithUnitValues(spec, id, std::move(keys), rng));
        }
        Merge(spec, submissions);
      }
    }
  }
}

TEST_P(ShapeContract, ContributorCounts_AroundPowersOfTwo) {
  Rng rng(TestSeed(2));
  for (const int count : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 65535, 65536, 65537}) {
    SCOPED_TRACE(count);
    TensorSpec spec = Plain(1000);
    spec.aggregation.min_contributors = static_cast<uint32_t>(count);
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < count; ++i) {
      submissions.push_back(WithUnitValues(spec, std::to_string(i), {5, 5 + rng.Below(900)}, rng));
    }
    const Result result = Merge(spec, submissions);
    ASSERT_GE(result.num_keys, 1u);
    EXPECT_EQ(result.KeyAt(0), 5u);
    EXPECT_EQ(result.counts[0], static_cast<uint32_t>(count)) << "counts must not saturate";
  }
}

TEST_P(ShapeContract, NumRows_AroundPowersOfTwo_AllKeys) {
  Rng rng(TestSeed(3));
  for (const uint64_t num_rows :
       {1, 2, 31, 32, 33, 63, 64, 65, 16383, 16384, 16385, 65535, 65536, 65537, 262143, 262145}) {
    for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense}) {
      SCOPED_TRACE(num_rows);
      TensorSpec spec = Plain(num_rows);
      spec.aggregation.result_layout = layout;
      std::vector<uint64_t> keys(num_rows);
      std::iota(keys.begin(), keys.end(), uint64_t{0});
      const Result result =
          Merge(spec, {WithUnitValues(spec, "a", keys, rng), WithUnitValues(spec, "b", {num_rows - 1}, rng)});
      EXPECT_EQ(result.num_keys, num_rows);
    }
  }
}

TEST_P(ShapeContract, Keys_AtTheEdgesOfAnyBlock) {
  // Around every power of two, and the last key of every num_rows.
  Rng rng(TestSeed(4));
  for (const uint64_t num_rows : {uint64_t{1} << 20, (uint64_t{1} << 32) - 1, uint64_t{1} << 32,
                                  (uint64_t{1} << 32) + 1, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{0}}) {
    SCOPED_TRACE(num_rows);
    const TensorSpec spec = Plain(num_rows);
    std::vector<RawSubmission> submissions;
    for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kSorted, KeyOrder::kDescending, KeyOrder::kShuffled,
                                 KeyOrder::kShuffledUnique}) {
      std::vector<uint64_t> keys = RandomKeys(rng, num_rows, 400, KeyStyle::kEdges, order);
      submissions.push_back(WithUnitValues(spec, std::to_string(submissions.size()), std::move(keys), rng));
    }
    Merge(spec, submissions);
  }
}

TEST_P(ShapeContract, Widths_WithEveryDType) {
  Rng rng(TestSeed(5));
  for (const uint32_t row_width : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 300}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32,
                              DType::kInt64, DType::kUInt32, DType::kUInt64}) {
      for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kShuffled}) {
        TensorSpec spec = MakeSpec(dtype, Op::kSum, 50, row_width);
        SCOPED_TRACE(Describe(spec));
        std::vector<RawSubmission> submissions;
        for (const char* id : {"c", "a", "b"}) {
          std::vector<uint64_t> keys = RandomKeys(rng, 50, 40, KeyStyle::kUniform, order);
          submissions.push_back(WithUnitValues(spec, id, std::move(keys), rng));
        }
        Merge(spec, submissions);
      }
    }
  }
}

TEST_P(ShapeContract, ImplicitRuns_OfSparseTensors) {
  // Chunks without key bytes, through every kind of key space; MergeFrom mixes them with stored keys.
  Rng rng(TestSeed(10));
  for (const uint64_t num_rows : {uint64_t{1000}, uint64_t{1} << 40, uint64_t{0}}) {
    const TensorSpec spec = Plain(num_rows, 3);
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < 12; ++i) {
      std::vector<uint64_t> keys(1 + rng.Below(60));
      std::iota(keys.begin(), keys.end(), i == 0 ? num_rows - keys.size() : rng.Below(900));
      submissions.push_back(WithUnitValues(spec, std::to_string(i), std::move(keys), rng));
    }
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Run({spec}, submissions, {.shuffle_seed = seed, .num_aggregations = 2});
    }
  }
}

TEST_P(ShapeContract, Failure_EarlyInALargeRound_StopsCleanly) {
  // What stops the merge lies at one key, among so many that an engine will have cut them into pieces.
  Rng rng(TestSeed(12));
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum, 4000000);
  for (const uint64_t bad_key : {uint64_t{0}, uint64_t{1999999}, uint64_t{3999999}}) {
    SCOPED_TRACE(Describe(spec) + ", key " + std::to_string(bad_key));
    std::vector<RawSubmission> submissions;
    for (const char* id : {"a", "b", "zero"}) {
      std::vector<uint64_t> keys = RandomKeys(rng, spec.num_rows, 100000, KeyStyle::kUniform, KeyOrder::kSortedUnique);
      std::erase(keys, bad_key);
      std::vector<int64_t> values(keys.size(), 1);
      keys.push_back(bad_key);
      values.push_back(std::numeric_limits<int64_t>::max());
      submissions.push_back(IntegerClient(spec, id, keys, values));
    }
    EXPECT_EQ(MergeStatus(spec, submissions).code(), absl::StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace sparseagg::testing
