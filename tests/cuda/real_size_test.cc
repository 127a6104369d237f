// The CUDA engine against the CPU engine, bit for bit, at the sizes it is for: what is too large for the slow
// reference, to which both are held elsewhere. Without a GPU the engine's kernels run on the host.
//
//   SPARSEAGG_TEST_TUPLES=100000000 …   tuples of the large cases; a hundredth of them in each of the small ones
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/results.h"

namespace sparseagg::testing {
namespace {

#ifdef SPARSEAGG_TINY_BLOCKS
constexpr uint64_t kDefaultTuples = 20'000;  // the sanitizers' builds take ten times as long
#else
constexpr uint64_t kDefaultTuples = 200'000;
#endif

uint64_t TestTuples() {
  const char* text = std::getenv("SPARSEAGG_TEST_TUPLES");
  uint64_t tuples = 0;
  return text != nullptr && absl::SimpleAtoi(text, &tuples) && tuples > 0 ? tuples : kDefaultTuples;
}

// How one client's keys lie.
enum class Keys {
  kSpread,   // ascending, without a key twice, over all of num_rows
  kShared,   // the same, and the same for all clients
  kRandom,   // in any order, some of them twice
  kHot,      // the same, but every second one is one of three
  kOneTwice  // ascending, each key twice
};

struct Shape {
  std::string name;
  Keys keys = Keys::kSpread;
  uint64_t num_rows = 0;
  uint32_t row_width = 1;
  uint64_t num_clients = 1;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  Weighting weighting = Weighting::kUniform;
  Numerics numerics = Numerics::kCanonical;
  ResultLayout layout = ResultLayout::kSparse;
  bool counts = false;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

TensorSpec SpecOf(const Shape& shape) {
  TensorSpec spec;
  spec.name = "t";
  spec.dtype = shape.dtype;
  spec.modular = IsModular(shape.dtype);
  spec.num_rows = shape.num_rows;
  spec.row_width = shape.row_width;
  AggregationSpec& a = spec.aggregation;
  a.op = shape.op;
  a.weighting = shape.weighting;
  a.numerics = shape.numerics;
  a.result_layout = shape.layout;
  a.return_counts = shape.counts;
  return spec;
}

// Keys ascend by steps of `num_rows / count` with something random in each.
void FillKeys(const Shape& shape, Rng rng, uint64_t count, std::vector<uint64_t>& keys) {
  keys.resize(count);
  const uint64_t range = shape.num_rows == 0 ? ~uint64_t{0} : shape.num_rows;
  const uint64_t distinct = shape.keys == Keys::kOneTwice ? (count + 1) / 2 : count;
  const uint64_t step = std::max<uint64_t>(1, range / std::max<uint64_t>(1, distinct));
  for (uint64_t i = 0; i < count; ++i) {
    switch (shape.keys) {
      case Keys::kSpread:
      case Keys::kShared:
        keys[i] = i * step + rng.Below(step);
        break;
      case Keys::kOneTwice:
        keys[i] = i % 2 == 0 ? i / 2 * step + rng.Below(step) : keys[i - 1];
        break;
      case Keys::kRandom:
        keys[i] = rng.Below(shape.num_rows);
        break;
      case Keys::kHot:
        keys[i] = i % 2 == 0 ? rng.Below(3) * (range / 4) : rng.Below(shape.num_rows);
        break;
    }
  }
}

// A round's arrays, and the updates that lie there.
class Round {
 public:
  Round(const Shape& shape, const TensorSpec& spec, uint64_t num_tuples, uint64_t seed) {
    Rng rng(seed);
    // Any values will do, and a pool of them is filled at once.
    const std::string pool = RandomValues(rng, shape.dtype, kPool, ValueStyle::kUnit);
    const size_t value_bytes = pool.size() / kPool;
    const bool is_ascending = shape.keys == Keys::kSpread || shape.keys == Keys::kShared;
    uint64_t count = num_tuples / shape.row_width / shape.num_clients;
    if (is_ascending && shape.num_rows != 0) count = std::min(count, shape.num_rows);
    const Rng shared(rng.Bits());
    std::vector<uint64_t> wide;
    for (uint64_t k = 0; k < shape.num_clients; ++k) {
      FillKeys(shape, shape.keys == Keys::kShared ? shared : Rng(rng.Bits()), count, wide);
      UpdateColumns columns;
      if (HasNarrowKeys(spec)) {
        narrow_.emplace_back(wide.begin(), wide.end());
        columns.keys = absl::MakeConstSpan(narrow_.back());
      } else {
        wide_.push_back(wide);
        columns.keys = absl::MakeConstSpan(wide_.back());
      }
      if (shape.op != Op::kUnion) {
        values_.emplace_back(count * shape.row_width * value_bytes);
        Column<std::byte>& values = values_.back();
        for (size_t at = 0; at < values.size();) {
          const size_t first = rng.Below(kPool) * value_bytes;
          const size_t bytes = std::min(pool.size() - first, values.size() - at);
          std::memcpy(values.data() + at, pool.data() + first, bytes);
          at += bytes;
        }
        columns.values = values.data();
      }
      double weight = 1.0;
      if (shape.weighting == Weighting::kByWeight) {
        weight = IsFloat(shape.dtype) ? 0.5 + 7.0 * rng.Unit() : static_cast<double>(1 + rng.Below(7));
      }
      absl::StatusOr<ValidatedUpdate> update = ValidatedUpdate::Create(spec, std::move(columns), weight);
      if (!update.ok()) {
        status_ = update.status();
        return;
      }
      updates_.push_back(*std::move(update));
    }
  }

  const absl::Status& status() const { return status_; }

  absl::StatusOr<Result> Merge(Engine& engine, const TensorSpec& spec) const {
    absl::StatusOr<std::unique_ptr<Aggregation>> aggregation = Aggregation::Create(engine, {spec});
    if (!aggregation.ok()) return aggregation.status();
    for (size_t k = 0; k < updates_.size(); ++k) {
      absl::StatusOr<PreparedSubmission> prepared = (*aggregation)->Prepare({updates_[k]});
      if (!prepared.ok()) return prepared.status();
      const absl::Status added = (*aggregation)->Add(absl::StrFormat("%020d", k), *std::move(prepared));
      if (!added.ok()) return added;
    }
    absl::StatusOr<std::vector<Result>> results = std::move(**aggregation).Finish();
    if (!results.ok()) return results.status();
    return std::move(results->front());
  }

 private:
  static constexpr size_t kPool = size_t{1} << 16;

  // Never grow beyond what they are made with, so that spans stay; a vector's move keeps its memory.
  std::vector<std::vector<uint32_t>> narrow_;
  std::vector<std::vector<uint64_t>> wide_;
  std::vector<Column<std::byte>> values_;
  std::vector<ValidatedUpdate> updates_;
  absl::Status status_;
};

// A GPU, or its stand-in on the host.
std::unique_ptr<cuda::DeviceEngine> Subject() {
  cuda::DeviceEngineOptions options;
  if (!CudaStatus().ok()) return std::make_unique<cuda::DeviceEngine>(std::make_unique<cuda::HostDevice>(), options);
  return std::make_unique<cuda::DeviceEngine>(*cuda::CreateCudaDevice(), options);
}

// Empty, or what is wrong.
std::string Disagreement(const Shape& shape, uint64_t num_tuples, cuda::DeviceEngine& subject) {
  const TensorSpec spec = SpecOf(shape);
  if (const absl::Status status = Validate(spec); !status.ok()) return status.ToString();
  const Round round(shape, spec, num_tuples, TestSeed(7));
  if (!round.status().ok()) return round.status().ToString();
  const std::unique_ptr<Engine> cpu = CreateCpuEngine({});
  const absl::StatusOr<Result> expected = round.Merge(*cpu, spec);
  const cuda::DeviceUse before = subject.use();
  const absl::StatusOr<Result> actual = round.Merge(subject, spec);
  if (!subject.Probe().ok()) return absl::StrCat("the device failed: ", subject.Probe().ToString());
  if (subject.use().num_fallbacks > 0) return "the device had no memory, and the host did its work";
  if (subject.use().num_done == before.num_done) return "the device was not used";
  if (!expected.ok() || !actual.ok()) {
    return absl::StrCat("cpu: ", expected.status().ToString(), "; subject: ", actual.status().ToString());
  }
  return Diff(*actual, *expected);
}

std::vector<Shape> LargeShapes() {
  using enum Keys;
  using enum DType;
  using enum Weighting;
  using enum Numerics;
  using enum ResultLayout;
  constexpr uint64_t kAll = 0;
  constexpr uint64_t kHashed = uint64_t{1} << 40;
  return {
      {"Tiles", kSpread, 25'000'000, 1, 50, Op::kSum, kFloat32, kUniform, kCanonical, kSparse, true},
      {"TilesOfIntegers", kSpread, 25'000'000, 1, 50, Op::kMean, kInt32, kByWeight, kCanonical, kSparse, true},
      {"Shared", kShared, 1'000'000'000, 1, 20, Op::kCoordinateMean, kFloat32, kByWeight, kCanonical, kSparse, true},
      {"HyperSparse", kSpread, 4'000'000'000, 1, 40, Op::kSum, kFloat32, kUniform, kCanonical, kSparse, true},
      {"Random", kRandom, 10'000'000, 1, 40, Op::kMean, kFloat32, kByWeight, kCanonical, kAuto, true},
      {"Hashed", kRandom, kHashed, 1, 40, Op::kSum, kFloat32, kByWeight, kCanonical, kSparse, true},
      {"Hashed64", kRandom, kAll, 1, 20, Op::kSum, kFloat64, kUniform, kCanonical, kSparse, false},
      {"HotKeys", kHot, 10'000'000, 1, 40, Op::kSum, kFloat32, kByWeight, kCanonical, kSparse, true},
      {"HotKeysOfIntegers", kHot, kHashed, 1, 40, Op::kSum, kInt64, kByWeight, kCanonical, kSparse, true},
      {"HotKeysMax", kHot, kAll, 1, 10, Op::kMax, kBFloat16, kUniform, kCanonical, kSparse, true},
      {"Twice", kOneTwice, 1'000'000'000, 1, 30, Op::kSum, kFloat16, kUniform, kCanonical, kSparse, true},
      {"DenseResult", kSpread, 4'000'000, 1, 50, Op::kMean, kFloat32, kByWeight, kCanonical, kDense, false},
      {"Union", kRandom, kHashed, 1, 20, Op::kUnion, kFloat32, kUniform, kCanonical, kSparse, true},
      {"Integers", kRandom, 100'000'000, 1, 20, Op::kSum, kInt64, kUniform, kCanonical, kSparse, true},
      {"Rows", kSpread, 1'000'000, 64, 40, Op::kMean, kFloat32, kByWeight, kCanonical, kSparse, true},
      {"WideRowsHot", kHot, 1'000'000, 256, 40, Op::kCoordinateMean, kFloat32, kByWeight, kCanonical, kSparse, true},
  };
}

class RealSize : public ::testing::TestWithParam<Shape> {};

TEST_P(RealSize, CudaEngine_EqualsTheCpuEngine) {
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", TestSeed(7)));
  EXPECT_EQ(Disagreement(GetParam(), TestTuples(), *Subject()), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, RealSize, ::testing::ValuesIn(LargeShapes()),
                         [](const ::testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

TEST(RealSizeMatrix, EveryOpTypeWeightingNumericsLayout_EqualsTheCpuEngine) {
  const std::unique_ptr<cuda::DeviceEngine> subject = Subject();
  const uint64_t num_rows = std::max<uint64_t>(1000, TestTuples() / 200);
  int num_cases = 0;
  for (const TensorSpec& spec : EveryCombination()) {
    const AggregationSpec& a = spec.aggregation;
    for (const Keys keys : {Keys::kSpread, Keys::kHot}) {
      const Shape shape{"", keys, num_rows, 1, 8, a.op, spec.dtype, a.weighting, a.numerics, a.result_layout, true};
      ++num_cases;
      ASSERT_EQ(Disagreement(shape, TestTuples() / 100, *subject), "")
          << Describe(spec) << ", keys " << static_cast<int>(keys);
    }
  }
  EXPECT_GE(num_cases, 200);
}

TEST(RealSizeMatrix, EveryWidth_EqualsTheCpuEngine) {
  const std::unique_ptr<cuda::DeviceEngine> subject = Subject();
  for (const uint32_t row_width : {1, 2, 3, 31, 32, 33, 64, 127, 256, 1000, 1024, 4095, 4096}) {
    for (const Keys keys : {Keys::kSpread, Keys::kHot}) {
      for (const DType dtype : {DType::kFloat32, DType::kInt32}) {
        const Shape shape{"", keys, 1000, row_width, 8, Op::kMean, dtype, Weighting::kByWeight, Numerics::kCanonical,
                          {}, true};
        ASSERT_EQ(Disagreement(shape, std::max<uint64_t>(TestTuples() / 100, 64 * row_width), *subject), "")
            << "row_width " << row_width << ", keys " << static_cast<int>(keys) << ", " << Name(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::testing
