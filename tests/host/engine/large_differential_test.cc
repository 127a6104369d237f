// About a million tuples in each shape that selects a merge path, compared with the reference.
//
// Small cases are in differential_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_engine.h"
#include "host/base/column.h"
#include "host/engine.h"
#include "host/result.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/sanitized.h"

namespace sparseagg::testing {
namespace {

// The sanitizers' builds take ten times as long, and work in smaller pieces (host/cpu/tuning.h).
constexpr uint64_t kDivisor = kSanitized ? 4 : 1;

struct Shape {
  std::string name;
  uint64_t num_rows;
  uint32_t row_width;
  size_t num_clients;
  size_t tuples;  // of each client
  KeyStyle keys;
  KeyOrder order;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  Weighting weighting = Weighting::kUniform;
  Numerics numerics = Numerics::kCanonical;
  bool counts = false;
  ResultLayout result = ResultLayout::kAuto;
  Layout layout = Layout::kSparse;
  double fill = 0.0;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

std::vector<Shape> Shapes() {
  using enum KeyStyle;
  using enum KeyOrder;
  const uint64_t all = 0;
  return {
      {"ZipfSorted", 10'000'000, 1, 50, 20'000, kZipf, kSortedUnique, Op::kCoordinateMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true},
      {"ZipfShuffled", 10'000'000, 1, 50, 20'000, kZipf, kShuffled, Op::kSum},
      {"HyperSparse", 1'000'000'000, 1, 50, 20'000, kUniform, kSortedUnique, Op::kSum, DType::kFloat32,
       Weighting::kUniform, Numerics::kCanonical, true},
      {"HyperSparseShuffled", 1'000'000'000, 1, 20, 40'000, kUniform, kShuffled, Op::kMax},
      {"ZipfDistinct", 10'000'000, 1, 40, 40'000, kZipf, kShuffledUnique, Op::kSum, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true},
      {"Hashed40", uint64_t{1} << 40, 1, 20, 40'000, kUniform, kShuffled, Op::kSum, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true},
      {"Hashed64", all, 1, 20, 40'000, kUniform, kShuffled, Op::kSum, DType::kFloat64},
      {"DenseIsh", 100'000, 1, 20, 60'000, kUniform, kSortedUnique, Op::kSum, DType::kFloat32, Weighting::kUniform,
       Numerics::kCanonical, true},
      {"Rows", 100'000, 64, 10, 2'000, kZipf, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kByWeight,
       Numerics::kCanonical, true},
      {"RowsShuffled", all, 16, 10, 6'000, kClustered, kShuffled, Op::kSum},
      {"RowsHashed64", all, 16, 10, 6'000, kUniform, kSortedUnique, Op::kCoordinateMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true},
      {"LongRows", 1'000'000, 600, 10, 150, kZipf, kSortedUnique, Op::kMean, DType::kFloat16},
      {"LongRowsShuffled", 2'000, 601, 10, 150, kUniform, kShuffled, Op::kSum, DType::kFloat32, Weighting::kByWeight,
       Numerics::kCanonical, true},
      {"Descending", 10'000'000, 1, 20, 50'000, kUniform, kDescending, Op::kSum, DType::kFloat32, Weighting::kUniform,
       Numerics::kCanonical, true},
      {"AllOneKey", 10'000'000, 1, 20, 50'000, kOneKey, kShuffled, Op::kSum, DType::kFloat32, Weighting::kUniform,
       Numerics::kCanonical, true},
      {"Clustered64", all, 1, 20, 50'000, kClustered, kShuffled, Op::kSum, DType::kInt64, Weighting::kUniform,
       Numerics::kCanonical, true},
      {"BinnedZipf", 10'000'000, 1, 50, 20'000, kZipf, kShuffled, Op::kSum, DType::kFloat32, Weighting::kUniform,
       Numerics::kBinned, true},
      {"BinnedHashed", all, 1, 40, 20'000, kUniform, kSortedUnique, Op::kCoordinateMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kBinned},
      {"BinnedRows", 1'000'000, 32, 20, 1'000, kZipf, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kByWeight,
       Numerics::kBinned, true},
      {"TopKMean", 2'500'000, 1, 40, 25'000, kUniform, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kByWeight},
      {"Hashed40Distinct", uint64_t{1} << 40, 1, 20, 40'000, kUniform, kShuffledUnique, Op::kSum, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true},
      {"Modular", 1'000'000, 1, 20, 50'000, kUniform, kShuffled, Op::kSum, DType::kUInt64},
      {"ZipfToDense", 10'000'000, 1, 50, 20'000, kZipf, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kUniform,
       Numerics::kCanonical, false, ResultLayout::kDense},
      {"CoordinateToDense", 1'000'000, 1, 40, 25'000, kUniform, kSortedUnique, Op::kCoordinateMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true, ResultLayout::kDense},
      {"ZipfToFilledDense", 10'000'000, 1, 50, 20'000, kZipf, kSortedUnique, Op::kSum, DType::kFloat32,
       Weighting::kUniform, Numerics::kCanonical, true, ResultLayout::kDense, Layout::kSparse, 2.5},
      {"RowsOfBothMethodsToDense", 1'000'000, 4, 50, 10'000, kZipf, kSortedUnique, Op::kSum, DType::kFloat32,
       Weighting::kUniform, Numerics::kCanonical, true, ResultLayout::kDense},
      {"MinToDense", 1'000'000, 5, 10, 20'000, kUniform, kShuffled, Op::kMin, DType::kInt32, Weighting::kUniform,
       Numerics::kCanonical, true, ResultLayout::kDense},
      {"RowsToDense", 100'000, 64, 10, 2'000, kZipf, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kByWeight,
       Numerics::kCanonical, true, ResultLayout::kDense},
      {"BinnedToDense", 1'000'000, 1, 20, 50'000, kUniform, kSortedUnique, Op::kCoordinateMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kBinned, true, ResultLayout::kDense},
      {"DenseToDense", 100'003, 1, 10, 100'003, kUniform, kSortedUnique, Op::kMean, DType::kFloat32,
       Weighting::kByWeight, Numerics::kCanonical, true, ResultLayout::kAuto, Layout::kDense},
      {"DenseToSparse", 100'003, 1, 10, 100'003, kUniform, kSortedUnique, Op::kSum, DType::kBFloat16,
       Weighting::kUniform, Numerics::kCanonical, false, ResultLayout::kSparse, Layout::kDense},
      {"DenseRows", 1'003, 130, 10, 1'003, kUniform, kSortedUnique, Op::kMean, DType::kFloat32, Weighting::kByWeight,
       Numerics::kCanonical, false, ResultLayout::kDense, Layout::kDense},
      {"BinnedDense", 100'003, 1, 10, 100'003, kUniform, kSortedUnique, Op::kSum, DType::kFloat32, Weighting::kUniform,
       Numerics::kBinned, false, ResultLayout::kDense, Layout::kDense},
  };
}

// What a column of the result's sizes gets next has held something else.
void SoilKeptMemory(const Result& result) {
  Column<std::byte> values(result.values.size());
  Column<uint32_t> counts(result.counts.size());
  Column<double> weights(result.weights.size());
  std::fill(values.begin(), values.end(), std::byte{0xa5});
  std::fill(counts.begin(), counts.end(), 0xa5a5a5a5);
  std::fill(weights.begin(), weights.end(), -1.0);
}

// The CUDA engine over two devices in host memory, with the sizes of real ones.
std::unique_ptr<Engine> TwoHostDevices() {
  std::vector<std::unique_ptr<cuda::Device>> devices;
  for (const int ordinal : {0, 1}) {
    devices.push_back(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.ordinal = ordinal}));
  }
  return std::make_unique<cuda::DeviceEngine>(std::move(devices), cuda::DeviceEngineOptions());
}

class LargeDifferential : public ::testing::TestWithParam<Shape> {};

TEST_P(LargeDifferential, EveryEngine_EqualsTheReference) {
  const Shape& shape = GetParam();
  const uint64_t seed = TestSeed(99);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  TensorSpec spec;
  spec.name = shape.name;
  spec.dtype = shape.dtype;
  spec.modular = IsModular(shape.dtype);
  spec.num_rows = shape.num_rows / kDivisor;
  spec.row_width = shape.row_width;
  spec.layout = shape.layout;
  AggregationSpec& a = spec.aggregation;
  a.op = shape.op;
  a.weighting = shape.weighting;
  a.numerics = shape.numerics;
  a.result_layout = shape.result;
  a.fill = shape.fill;
  a.return_counts = shape.counts;
  a.return_weights = shape.counts && shape.weighting == Weighting::kByWeight;

  std::vector<RawSubmission> submissions;
  for (size_t i = 0; i < shape.num_clients; ++i) {
    RawTensor raw;
    if (shape.layout == Layout::kDense) {
      raw.keys.resize(spec.num_rows);
      std::iota(raw.keys.begin(), raw.keys.end(), 0);
    } else {
      raw.keys = RandomKeys(rng, spec.num_rows, shape.tuples / kDivisor, shape.keys, shape.order);
    }
    raw.values = RandomValues(rng, shape.dtype, raw.keys.size() * shape.row_width, ValueStyle::kUnit);
    submissions.push_back({"client " + std::to_string(i), 0.5 + 7.0 * rng.Unit(), {std::move(raw)}});
  }
  const Verdict verdict = Judge({spec}, submissions);
  ASSERT_TRUE(verdict.failures.empty());
  std::vector<EngineCase> engines = AvailableEngines();
  engines.push_back({"cudahost2", TwoHostDevices});
  for (const EngineCase& engine_case : engines) {
    if (engine_case.tiny_pieces) continue;
    SCOPED_TRACE(engine_case.name);
    const std::unique_ptr<Engine> engine = engine_case.create();
    DriveOptions options = {.shuffle_seed = seed, .num_aggregations = engine_case.name == "cpu4" ? 3 : 1};
    if (engine_case.name == "cpu1") options = {.fold_seed = seed};
    SoilKeptMemory(verdict.results[0]);
    EXPECT_EQ(Disagreement({spec}, Drive(*engine, {spec}, submissions, options), verdict), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LargeDifferential, ::testing::ValuesIn(Shapes()),
                         [](const ::testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

}  // namespace
}  // namespace sparseagg::testing
