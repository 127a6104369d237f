// Going over to the CPU engine when the device fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cuda/device_accumulator.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/base/column.h"
#include "host/cpu/cpu_engine.h"
#include "host/unfinished_rows.h"
#include "tests/support/driver.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/sanitized.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

// Fails from the `num_good`-th operation on.
class DyingDevice : public cuda::HostDevice {
 public:
  explicit DyingDevice(int num_good) : num_good_(num_good) {}
  absl::Status Enter() override { return --num_good_ < 0 ? absl::InternalError("made to fail") : absl::OkStatus(); }

 private:
  int num_good_;
};

// The CPU engine's, of which one Prepare has no memory, or one Add, when it has counted the submission.
class FailsOnce : public Accumulator {
 public:
  FailsOnce(std::unique_ptr<Accumulator> accumulator, int at_prepare, int at_add)
      : accumulator_(std::move(accumulator)), at_prepare_(at_prepare), at_add_(at_add) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    if (--at_prepare_ == 0) return absl::ResourceExhaustedError("made to have no memory");
    return accumulator_->Prepare(std::move(update));
  }
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    absl::Status status = accumulator_->Add(std::move(update));
    return --at_add_ == 0 ? absl::ResourceExhaustedError("made to have no memory") : status;
  }
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override { return accumulator_->PrepareBytes(update); }
  absl::Status MergeFrom(Accumulator&& other) override { return accumulator_->MergeFrom(std::move(other)); }
  bool KeepsAll() const override { return accumulator_->KeepsAll(); }
  void Remove(absl::Span<const uint32_t> indices) override { accumulator_->Remove(indices); }
  void MultiplyWeights(absl::Span<const double> factors) override { accumulator_->MultiplyWeights(factors); }
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override {
    return accumulator_->ReadPending(order);
  }
  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override {
    return accumulator_->ExportRows(first, last, max_rows);
  }
  PartialTotals Totals() const override { return accumulator_->Totals(); }
  uint64_t ReadBytes(const PreparedUpdate* next) const override { return accumulator_->ReadBytes(next); }
  absl::Status FoldPending(SubmissionOrder order) override { return accumulator_->FoldPending(order); }
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override { return std::move(*accumulator_).Finish(order); }
  uint64_t num_submissions() const override { return accumulator_->num_submissions(); }
  size_t memory_bytes() const override { return accumulator_->memory_bytes(); }
  uint64_t FoldBytes(const PreparedUpdate* next) const override { return accumulator_->FoldBytes(next); }
  uint64_t FinishBytes(const PreparedUpdate* next) const override { return accumulator_->FinishBytes(next); }

 private:
  const std::unique_ptr<Accumulator> accumulator_;
  mutable int at_prepare_;
  int at_add_;
};

struct Update {
  std::vector<uint32_t> keys;
  std::vector<int64_t> values;

  ValidatedUpdate Validated(const TensorSpec& spec) const {
    UpdateColumns columns;
    columns.keys = absl::MakeConstSpan(keys);
    columns.values = reinterpret_cast<const std::byte*>(values.data());
    return *ValidatedUpdate::Create(spec, columns, 1.0);
  }
};

TensorSpec IntegerSum() {
  TensorSpec spec;
  spec.name = "t";
  spec.dtype = DType::kInt64;
  spec.num_rows = 100;
  return spec;
}

int64_t FirstValue(const Result& result) {
  int64_t value = 0;
  std::memcpy(&value, result.values.data(), sizeof(value));
  return value;
}

TEST(Fallback, IsCounted_AndToldWithTheReason) {
  const TensorSpec spec = IntegerSum();
  const Update update = {{5, 7}, {1, 1}};
  std::vector<absl::Status> told;
  cuda::DeviceEngineOptions options;
  options.on_fallback = [&told](const absl::Status& reason) { told.push_back(reason); };
  const auto merge = [&](cuda::DeviceEngine& engine) {
    const auto accumulator = *engine.CreateAccumulator(spec);
    ASSERT_TRUE(accumulator->Add(*accumulator->Prepare(update.Validated(spec))).ok());
    const std::vector<uint32_t> order = {0};
    EXPECT_TRUE(std::move(*accumulator).Finish(order).ok());
  };

  cuda::DeviceEngine good(std::make_unique<cuda::HostDevice>(), options);
  merge(good);
  EXPECT_GE(good.use().num_done, 1u);
  EXPECT_EQ(good.use().num_fallbacks, 0u);
  EXPECT_TRUE(told.empty());

  cuda::DeviceEngine full(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.memory_bytes = 1}), options);
  for (int round = 1; round <= 2; ++round) {
    merge(full);
    EXPECT_EQ(full.use().num_done, 0u);
    EXPECT_EQ(full.use().num_fallbacks, static_cast<uint64_t>(round));
    ASSERT_EQ(told.size(), static_cast<size_t>(round));
    EXPECT_EQ(told.back().code(), absl::StatusCode::kResourceExhausted);
  }

  // For good: those that come later do not tell it again.
  told.clear();
  cuda::DeviceEngine dying(std::make_unique<DyingDevice>(0), options);
  const auto early = *dying.CreateAccumulator(spec);
  ASSERT_TRUE(early->Add(*early->Prepare(update.Validated(spec))).ok());
  merge(dying);
  EXPECT_TRUE(early->FoldPending({}).ok());
  EXPECT_EQ(dying.use().num_fallbacks, 2u);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), absl::StatusCode::kInternal);
}

// By whoever asks a server what it is.
TEST(Fallback, EngineIsAskedDuringAnOperation_AnswersAtOnce) {
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  const absl::Status status = engine.RunOnDevice([&](cuda::Session&, int) {
    std::thread([&] {
      EXPECT_EQ(engine.description(), "kernels on the host");
      EXPECT_TRUE(engine.Probe().ok());
      EXPECT_EQ(engine.use().num_done, 0u);
      EXPECT_TRUE(engine.CreateAccumulator(IntegerSum()).ok());
    }).join();
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(engine.use().num_done, 1u);
}

TEST(Fallback, HandOverFailsInTheMiddle_NothingCountsTwice) {
  const TensorSpec spec = IntegerSum();
  const Update update = {{5, 7}, {1, 1}};
  const auto cpu = CreateCpuEngine({});
  for (const bool in_add : {false, true}) {
    for (int at = 1; at <= 4; ++at) {
      SCOPED_TRACE(absl::StrCat(in_add ? "Add " : "Prepare ", at));
      cuda::DeviceEngine engine(std::make_unique<DyingDevice>(0), {});
      auto fails = std::make_unique<FailsOnce>(*cpu->CreateAccumulator(spec), in_add ? 0 : at, in_add ? at : 0);
      cuda::DeviceAccumulator accumulator(engine, spec, std::move(fails), /*on_cpu=*/false);
      for (int i = 0; i < 4; ++i) {
        auto prepared = accumulator.Prepare(update.Validated(spec));
        ASSERT_TRUE(prepared.ok()) << prepared.status();
        ASSERT_TRUE(accumulator.Add(*std::move(prepared)).ok());
      }
      EXPECT_EQ(accumulator.FoldPending({}).code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(accumulator.num_submissions(), 4u);
      EXPECT_GT(accumulator.memory_bytes(), 0u);
      {
        const FailingAllocation failing(0);
        EXPECT_EQ(accumulator.Totals().num_submissions, 4u);
      }
      EXPECT_EQ(accumulator.FoldPending({}), absl::OkStatus());
      EXPECT_EQ(accumulator.num_submissions(), 4u);
      const std::vector<uint32_t> order = {0, 1, 2, 3};
      const absl::StatusOr<Result> result = std::move(accumulator).Finish(order);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(FirstValue(*result), 4);
    }
  }
}

// Some submissions are with the CPU engine already, the others still wait for the hand-over.
TEST(Fallback, Remove_AHandOverThatStoppedInTheMiddle_TakesOutOfBothParts) {
  TensorSpec spec = IntegerSum();
  spec.aggregation.op = Op::kCoordinateMean;  // whose weights must be taken out, too
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.return_moments = true;  // so that the order matters, and FoldPending goes over
  const auto cpu = CreateCpuEngine({});
  for (int at = 1; at <= 6; ++at) {
    SCOPED_TRACE(at);
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
    auto fails = std::make_unique<FailsOnce>(*cpu->CreateAccumulator(spec), at, 0);
    cuda::DeviceAccumulator accumulator(engine, spec, std::move(fails), /*on_cpu=*/false);
    std::vector<Update> updates;
    for (int64_t i = 0; i < 6; ++i) updates.push_back({{5}, {int64_t{1} << i}});
    std::vector<uint32_t> order = {0, 1, 2, 3, 4, 5};
    for (const Update& update : updates) {
      ASSERT_TRUE(accumulator.Add(*accumulator.Prepare(update.Validated(spec))).ok());
    }
    if (at % 2 == 0) {
      EXPECT_EQ(accumulator.FoldPending(order).code(), absl::StatusCode::kResourceExhausted);
    }
    ASSERT_TRUE(accumulator.KeepsAll());
    const size_t bytes = accumulator.memory_bytes();
    accumulator.Remove(std::vector<uint32_t>{0, 2, 5});
    EXPECT_EQ(accumulator.num_submissions(), 3u);
    EXPECT_LT(accumulator.memory_bytes(), bytes);
    order.resize(3);
    const absl::StatusOr<Result> result = std::move(accumulator).Finish(order);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(FirstValue(*result), (2 + 8 + 16 + 1) / 3);  // 8.67 rounds to 9
  }
}

// For the thread sanitizer.
TEST(Fallback, PreparesWhileItGoesOver_NoRace) {
  TensorSpec spec = IntegerSum();
  const Update update = {{5, 3, 5}, {1, 1, 1}};
  cuda::DeviceEngineOptions options;
  options.tuning.min_resident_bytes = 1;
  options.tuning.min_pending_bytes = size_t{1} << 30;
  for (int num_good = 0; num_good < 100; num_good += 7) {
    cuda::DeviceEngine engine(std::make_unique<DyingDevice>(num_good), options);
    const std::unique_ptr<Accumulator> accumulator = *engine.CreateAccumulator(spec);
    std::thread other([&] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(accumulator->Prepare(update.Validated(spec)).ok());
    });
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < 20; ++i) {
      auto prepared = accumulator->Prepare(update.Validated(spec));
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(accumulator->Add(*std::move(prepared)).ok());
      order.push_back(i);
    }
    EXPECT_EQ(accumulator->FoldPending({}), absl::OkStatus());
    other.join();
    const absl::StatusOr<Result> result = std::move(*accumulator).Finish(order);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(FirstValue(*result), 20);
  }
}

// In bytes, of this process; 0 where the system does not tell.
uint64_t MemoryNow(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size())) * 1024;
  }
  return 0;
}

bool ForgetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  return file.is_open() && static_cast<bool>(file << "5" << std::flush);
}

// What the aggregation says that it may take, it must not pass when the device fails.
TEST(Fallback, PeakOfMemory_WithinWhatWasSaid) {
  if (kSanitized) GTEST_SKIP() << "not covered here: memory, which sanitizers take in other amounts";
  constexpr uint64_t kSlack = uint64_t{16} << 20;  // arenas, pinned memory, the rounding to huge pages
  // What is freed is given back to the system at once.
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
  KeepFreedColumns(0);
  const absl::Cleanup keep_again = [] { KeepFreedColumns(internal::kDefaultKeptColumnBytes); };
  for (const DType dtype : {DType::kFloat32, DType::kUInt32}) {  // both have sums of 8 bytes
    TensorSpec spec;
    spec.name = "t";
    spec.num_rows = uint64_t{1} << 23;
    spec.row_width = 4;
    spec.dtype = dtype;
    spec.modular = !IsFloat(dtype);
    cuda::DeviceEngineOptions options;
    options.tuning.min_pending_bytes = size_t{8} << 20;
    options.tuning.staging_buffer_bytes = size_t{1} << 20;
    // Of integers it fails when it has merged some.
    const int num_good = IsFloat(dtype) ? 0 : 5;
    cuda::DeviceEngine engine(std::make_unique<DyingDevice>(num_good), options);
    const auto aggregation = *Aggregation::Create(engine, {spec});
    Rng rng(TestSeed(9));
    for (int i = 0; i < 8; ++i) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, spec.num_rows, 400'000, KeyStyle::kUniform, KeyOrder::kShuffled);
      raw.values = std::string(raw.keys.size() * spec.row_width * sizeof(float), '\0');
      ASSERT_EQ(Submit(*aggregation, {absl::StrCat("client ", i), 1.0, {std::move(raw)}}), absl::OkStatus());
    }
    if (!ForgetPeak()) GTEST_SKIP() << "the system does not tell the peak of memory";
    const uint64_t before = MemoryNow("VmRSS:");
    const uint64_t said = aggregation->BytesWith(nullptr) - aggregation->memory_bytes();
    const auto results = std::move(*aggregation).Finish();
    ASSERT_TRUE(results.ok()) << results.status();
    const uint64_t took = MemoryNow("VmHWM:") - before;
    EXPECT_LE(took, said + kSlack) << Name(dtype);
    EXPECT_LE(said, 4 * took) << "more than it takes; " << Name(dtype);
    EXPECT_FALSE(engine.Probe().ok()) << "the device did not fail";
  }
}

}  // namespace
}  // namespace sparseagg::testing
