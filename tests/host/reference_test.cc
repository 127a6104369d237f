// The reference's folds and comparisons against hand-computed values.
//
// Its results are judged by the contract suite, which runs on the reference as on an engine.
#include "tests/support/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/fold.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace sparseagg::testing
