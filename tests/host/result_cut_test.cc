// Cuts of results, by hand: sizes around the eight lanes, ties, thresholds, and what has no finite norm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/aggregation.h"
#include "host/clip/clip.h"
#include "host/result.h"
#include "host/updates/update.h"
#include "tests/support/engines.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A result of keys 10, 20, 30, …, with counts 1, 2, … and weights 0.5, 1.5, ….
Result Rows(DType dtype, uint32_t width, const std::vector<double>& values) {
  Result result;
  result.dtype = dtype;
  result.row_width = width;
  result.num_rows = 1000;
  result.num_keys = values.size() / width;
  std::vector<uint32_t> keys;
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    keys.push_back(static_cast<uint32_t>(10 * (row + 1)));
    result.counts.push_back(static_cast<uint32_t>(row + 1));
    result.weights.push_back(static_cast<double>(row) + 0.5);
  }
  result.keys.emplace<0>(keys.begin(), keys.end());
  const std::string bytes = Pack(dtype, values);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  result.values = {data, data + bytes.size()};
  return result;
}

TensorSpec Spec(uint64_t top_k, double min_norm = 0.0) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 1000;
  spec.aggregation.result_top_k = top_k;
  spec.aggregation.result_min_norm = min_norm;
  return spec;
}

std::vector<uint64_t> Kept(const TensorSpec& spec, Result result) {
  const uint64_t before = result.num_keys;
  CutResult(spec, result);
  EXPECT_EQ(result.num_cut_keys, before - result.num_keys);
  EXPECT_EQ(result.values.size(), result.num_keys * result.row_bytes());
  EXPECT_EQ(result.counts.size(), result.num_keys);
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    EXPECT_EQ(result.counts[row] * 10, result.KeyAt(row));
    EXPECT_EQ(result.weights[row], static_cast<double>(result.counts[row]) - 0.5);
  }
  return KeysOf(result);
}

// Column c is added to lane c mod 8; another order of addition gives other bits, and another winner.
TEST(ResultCut, Norm_IsASumInEightLanes) {
  for (const uint32_t width : {7u, 8u, 9u, 16u, 17u, 33u}) {
    std::vector<double> values(2 * width, 0.0);
    for (uint32_t c = 0; c < width; ++c) values[c] = std::sqrt(0.1) * (c + 1);
    std::copy_n(values.begin(), width, values.begin() + width);
    double lanes[8] = {};
    for (uint32_t c = 0; c < width; ++c) lanes[c % 8] += values[c] * values[c];
    const double sum =
        ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    const double norm = std::sqrt(sum);
    EXPECT_THAT(Kept(Spec(0, norm), Rows(DType::kFloat64, width, values)), ElementsAre(10, 20)) << width;
    EXPECT_THAT(Kept(Spec(0, std::nextafter(norm, kInfinity)), Rows(DType::kFloat64, width, values)), IsEmpty());
  }
}

TEST(ResultCut, RowsWithoutAFiniteNorm_AreTheLargest) {
  const double nan = std::nan("");
  const Result rows = Rows(DType::kFloat64, 2, {1, 1, nan, 0, 1e300, 0, 0, -kInfinity, 2, 2});
  EXPECT_THAT(Kept(Spec(3), rows), ElementsAre(20, 30, 40));
  EXPECT_THAT(Kept(Spec(2), rows), ElementsAre(20, 30));
  EXPECT_THAT(Kept(Spec(4), rows), ElementsAre(20, 30, 40, 50));
  EXPECT_THAT(Kept(Spec(0, 0x1p500), rows), ElementsAre(20, 30, 40));
}

TEST(ResultCut, Validate_RefusesByNameWithTheReason) {
  const auto refused = [](const TensorSpec& spec, const char* text) {
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  EXPECT_TRUE(Validate(Spec(1, 0x1p500)).ok());
  for (const double norm : {-1.0, 0x1p-501, 0x1p501, kInfinity, std::nan("")})
    refused(Spec(0, norm), "result_min_norm");
  TensorSpec spec = Spec(3);
  spec.aggregation.result_layout = ResultLayout::kDense;
  refused(spec, "tensor 't': result_top_k is for the result_layout sparse: a dense result has a row for every key");
  spec.aggregation.result_layout = ResultLayout::kAuto;
  refused(spec, "result_top_k is for the result_layout sparse: auto chooses the layout by the keys before the cut");
  spec = Spec(0, 1.0);
  spec.aggregation.op = Op::kUnion;
  refused(spec, "result_min_norm is for rows with values, and union has none");
  spec = Spec(1);
  spec.dtype = DType::kUInt32;
  spec.modular = true;
  refused(spec, "result_top_k is for values with a norm, and modular sums wrap");
}

TEST(ResultCut, ResultsInDeviceMemory_AreRefused) {
  for (const bool moments : {false, true}) {
    TensorSpec spec = Spec(moments ? 0 : 3);
    spec.aggregation.return_moments = moments;
    const std::unique_ptr<Engine> engine = TortureEngine(1, /*tiles=*/true);
    auto aggregation = Aggregation::Create(*engine, {spec});
    ASSERT_TRUE(aggregation.ok());
    const auto results = std::move(**aggregation).FinishOnDevice();
    EXPECT_EQ(results.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(results.status().message(), HasSubstr("tensor 't': no result in device memory"));
  }
}

TEST(Moments, UpdatesInDeviceMemory_AreRefused) {
  TensorSpec spec = Spec(0);
  spec.aggregation.return_moments = true;
  const auto squares = SquareRows(spec, ValidatedUpdate::OnDevice({}, 1.0, /*sorted=*/true, /*unique=*/true));
  EXPECT_EQ(squares.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Moments, Validate_RefusesByNameWithTheReason) {
  const auto refused = [](const TensorSpec& spec, const char* text) {
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  TensorSpec spec = Spec(0);
  spec.aggregation.return_moments = true;
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean}) {
    spec.aggregation.op = op;
    EXPECT_TRUE(Validate(spec).ok());
    EXPECT_TRUE(OrderMatters(spec));
  }
  for (const Op op : {Op::kUnion, Op::kMin, Op::kMax, Op::kMedian}) {
    spec.aggregation.op = op;
    refused(spec, "tensor 't': return_moments is for the ops sum, mean and coordinate_mean");
  }
  spec.aggregation.op = Op::kSum;
  spec.aggregation.numerics = Numerics::kBinned;
  refused(spec, "return_moments needs canonical numerics");
  spec.aggregation.numerics = Numerics::kCanonical;
  spec.dtype = DType::kInt64;
  EXPECT_TRUE(OrderMatters(spec)) << "the squares are float64 sums";
  spec.dtype = DType::kUInt64;
  spec.modular = true;
  refused(spec, "return_moments is for values with squares, and modular sums wrap");
}

}  // namespace
}  // namespace sparseagg::testing
