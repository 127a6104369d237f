// Whatever call of the device fails, in whatever way, the round gives the bits of the reference: from the device after
// another attempt, from the same kernels on the host, or from the CPU engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

struct Round {
  std::string name;
  bool tiles = false;
  TensorSpec spec;
  std::vector<RawSubmission> submissions;
};

void PrintTo(const Round& round, std::ostream* out) { *out << round.name; }

Round MakeRound(std::string name, Op op, DType dtype) {
  Round round;
  round.name = std::move(name);
  round.spec.name = "t";
  round.spec.num_rows = 50;
  round.spec.row_width = 3;
  round.spec.dtype = dtype;
  AggregationSpec& a = round.spec.aggregation;
  a.op = op;
  a.weighting = Weighting::kByWeight;
  a.return_counts = true;
  a.return_weights = IsFloat(dtype);  // whose sums are in order
  a.prune_zeros = true;
  a.result_layout = ResultLayout::kAuto;
  Rng rng(5);
  for (int i = 0; i < 12; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, round.spec.num_rows, 20, KeyStyle::kZipf, KeyOrder::kShuffled);
    raw.values = RandomValues(rng, dtype, raw.keys.size() * 3, ValueStyle::kSmallIntegers);
    round.submissions.push_back({std::to_string(i), 1.0 + i % 3, {std::move(raw)}});
  }
  return round;
}

// By the tile path: sorted, and no weights to sum.
Round MakeTileRound() {
  Round round = MakeRound("Tiles", Op::kMean, DType::kFloat32);
  round.tiles = true;
  round.spec.aggregation.return_weights = false;
  for (RawSubmission& submission : round.submissions) {
    RawTensor& raw = submission.tensors[0];
    std::sort(raw.keys.begin(), raw.keys.end());
    raw.keys.erase(std::unique(raw.keys.begin(), raw.keys.end()), raw.keys.end());
    raw.values.resize(raw.keys.size() * 3 * sizeof(float));
  }
  return round;
}

class FaultsTest : public ::testing::TestWithParam<std::tuple<Round, Fault>> {};

TEST_P(FaultsTest, AnyCallFails_ResultIsThatOfTheReference_NothingLeaks) {
  const auto& [round, fault] = GetParam();
  const Verdict verdict = Judge({round.spec}, round.submissions);
  ASSERT_TRUE(verdict.failures.empty());
  uint64_t at_call = 1;
  for (bool faulted = true; faulted; ++at_call) {
    SCOPED_TRACE("call " + std::to_string(at_call));
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    if (!round.tiles) options.tuning.min_tile_tuples = 1e300;
    options.cpu.num_threads = 1;
    auto engine = std::make_unique<cuda::DeviceEngine>(
        std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = at_call}, FaultPlan{fault, at_call},
                                       &record),
        options);
    ASSERT_EQ(Disagreement({round.spec}, Drive(*engine, {round.spec}, round.submissions), verdict), "");
    faulted = record.faulted;
    const bool is_fatal = fault == Fault::kSticky || fault == Fault::kSilentThenSticky;
    if (faulted && is_fatal) {
      // Told apart by a healthy probe only where the fault came after the last result was safe.
      const uint64_t launches = record.num_launches;
      EXPECT_FALSE(engine->Probe().ok());
      EXPECT_EQ(Disagreement({round.spec}, Drive(*engine, {round.spec}, round.submissions), verdict), "");
      EXPECT_EQ(record.num_launches, launches) << "a device that failed was used again";
    } else {
      EXPECT_TRUE(engine->Probe().ok()) << engine->Probe();
    }
    engine.reset();
    EXPECT_EQ(record.num_leaked, 0u);
  }
  EXPECT_GE(at_call, 50u) << "this round hardly uses the device";
}

auto RoundsAndFaults() {
  return ::testing::Combine(
      ::testing::Values(MakeRound("KeepsUpdates", Op::kCoordinateMean, DType::kFloat32),
                        MakeRound("MergesOnArrival", Op::kMean, DType::kInt64),
                        MakeRound("Integers", Op::kSum, DType::kInt32), MakeTileRound()),
      ::testing::Values(Fault::kOutOfMemory, Fault::kOutOfMemoryNow, Fault::kSticky, Fault::kSilentThenSticky));
}

std::string FaultCaseName(const ::testing::TestParamInfo<std::tuple<Round, Fault>>& fault_case) {
  return std::get<0>(fault_case.param).name + ::testing::PrintToString(std::get<1>(fault_case.param));
}

INSTANTIATE_TEST_SUITE_P(Rounds, FaultsTest, RoundsAndFaults(), FaultCaseName);

// The same where a GPU does the work up to the fault, at fewer calls, since each takes a device of its own.
class RealDeviceFaults : public ::testing::TestWithParam<std::tuple<Round, Fault>> {
 protected:
  void SetUp() override {
    if (const absl::Status status = CudaStatus(); !status.ok()) {
      GTEST_SKIP() << "not covered here: faults in the middle of work on a GPU. " << status.message();
    }
  }
};

TEST_P(RealDeviceFaults, AnyCallFails_ResultIsThatOfTheReference_NothingLeaks) {
  const auto& [round, fault] = GetParam();
  const Verdict verdict = Judge({round.spec}, round.submissions);
  for (uint64_t at_call = 1; at_call < 400; at_call += 1 + at_call / 4) {
    SCOPED_TRACE("call " + std::to_string(at_call));
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    if (!round.tiles) options.tuning.min_tile_tuples = 1e300;
    absl::StatusOr<std::unique_ptr<cuda::Device>> device = cuda::CreateCudaDevice();
    ASSERT_TRUE(device.ok()) << device.status();
    auto engine = std::make_unique<cuda::DeviceEngine>(
        std::make_unique<FaultyDevice>(*std::move(device), FaultPlan{fault, at_call}, &record), options);
    ASSERT_EQ(Disagreement({round.spec}, Drive(*engine, {round.spec}, round.submissions), verdict), "");
    engine.reset();
    EXPECT_EQ(record.num_leaked, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Rounds, RealDeviceFaults, RoundsAndFaults(), FaultCaseName);

// Takes almost all the memory that a device has.
class Hog {
 public:
  explicit Hog(cuda::Device& device) : device_(device) {
    for (size_t bytes = size_t{1} << 36; bytes >= size_t{1} << 21; bytes /= 2) {
      for (auto taken = device_.Allocate(bytes, cuda::Lane::kCompute); taken.ok();
           taken = device_.Allocate(bytes, cuda::Lane::kCompute)) {
        taken_.push_back(*taken);
      }
    }
    device_.AwaitLane(cuda::Lane::kCompute).IgnoreError();
  }
  ~Hog() {
    for (void* const d_memory : taken_) device_.Free(d_memory, cuda::Lane::kCompute);
    device_.AwaitLane(cuda::Lane::kCompute).IgnoreError();
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  cuda::Device& device_;
  std::vector<void*> taken_;
};

// Of twenty clients with that many tuples each, which hardly share keys.
std::vector<RawSubmission> SpreadSubmissions(const TensorSpec& spec, size_t num_tuples) {
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(8));
  for (int i = 0; i < 20; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, num_tuples, KeyStyle::kUniform, KeyOrder::kShuffled);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kCancelling);
    submissions.push_back({"client " + std::to_string(i), 1.0, {std::move(raw)}});
  }
  return submissions;
}

TEST(RealDeviceFaultsOfMemory, FullDevice_ResultIsThatOfTheReference_DeviceStaysInUse) {
  if (const absl::Status status = CudaStatus(); !status.ok()) {
    GTEST_SKIP() << "not covered here: a GPU without memory. " << status.message();
  }
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 1'000'000;
  spec.row_width = 64;
  const std::vector<RawSubmission> small = SpreadSubmissions(spec, 1'000);
  // Rows that the memory of the small ones, which the engine keeps, has no room for.
  const std::vector<RawSubmission> large = SpreadSubmissions(spec, 25'000);
  const Verdict small_verdict = Judge({spec}, small);
  const Verdict large_verdict = Judge({spec}, large);
  absl::StatusOr<std::unique_ptr<cuda::Device>> device = cuda::CreateCudaDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  cuda::DeviceEngine engine(*std::move(device), {});
  absl::StatusOr<std::unique_ptr<cuda::Device>> other = cuda::CreateCudaDevice();
  ASSERT_TRUE(other.ok()) << other.status();
  // Loads the kernels, which would take memory that is not there, and pinned memory.
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, small), small_verdict), "");
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
  uint64_t num_fallbacks = 0;
  {
    const Hog hog(**other);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, large), large_verdict), "");
    EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
    num_fallbacks = engine.use().num_fallbacks;
    EXPECT_GE(num_fallbacks, 1u) << "the device was not full";
  }
  other->reset();  // it keeps what it got back
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, large), large_verdict), "");
  EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
  EXPECT_EQ(engine.use().num_fallbacks, num_fallbacks);
}

}  // namespace
}  // namespace sparseagg::testing
