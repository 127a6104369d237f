// Updates whose arrays are in device memory. The device is the host's memory here, so that every array can be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/cpu_engine.h"
#include "host/result.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace sparseagg::testing {
namespace {

// Arrays of one update as a caller would have them on a device: values of `value_bytes` may begin at any of them, as a
// slice of an array does. Whoever reads them after their release reads other numbers.
class DeviceArrays {
 public:
  DeviceArrays(const RawTensor& raw, size_t value_bytes, Rng& rng) : first_(rng.Coin() ? value_bytes : 0) {
    const auto fits = [&raw](uint64_t max) {
      return std::all_of(raw.keys.begin(), raw.keys.end(), [max](uint64_t key) { return key <= max; });
    };
    if (rng.Coin() && fits(std::numeric_limits<int32_t>::max())) {
      keys_ = Keys<int32_t>(raw.keys);
    } else if (rng.Coin() && fits(std::numeric_limits<uint32_t>::max())) {
      keys_ = Keys<uint32_t>(raw.keys);
    } else if (rng.Coin() && fits(std::numeric_limits<int64_t>::max())) {
      keys_ = Keys<int64_t>(raw.keys);
    } else {
      keys_ = Keys<uint64_t>(raw.keys);
    }
    if (raw.has_values) {
      // One byte more, so that values of no rows have an address, too.
      values_ = std::make_unique<std::byte[]>(first_ + raw.values.size() + 1);
      num_value_bytes_ = first_ + raw.values.size();
      std::memcpy(values_.get() + first_, raw.values.data(), raw.values.size());
    }
  }
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;
  ~DeviceArrays() {
    std::memset(bytes_.get(), 0xee, num_key_bytes_);
    if (values_ != nullptr) std::memset(values_.get(), 0xee, num_value_bytes_);
    ++num_released;
    // The memory itself stays until the end of the test, as a device's pool would keep it.
    Kept().push_back(std::move(bytes_));
    if (values_ != nullptr) Kept().push_back(std::move(values_));
  }

  const InputKeys& keys() const { return keys_; }
  const std::byte* values() const { return values_ == nullptr ? nullptr : values_.get() + first_; }

  static std::vector<std::unique_ptr<std::byte[]>>& Kept() {
    static auto& kept = *new std::vector<std::unique_ptr<std::byte[]>>;
    return kept;
  }
  static inline size_t num_released = 0;

 private:
  template <typename Key>
  InputKeys Keys(const std::vector<uint64_t>& keys) {
    num_key_bytes_ = keys.size() * sizeof(Key);
    bytes_ = std::make_unique<std::byte[]>(num_key_bytes_ + 1);
    auto* to = reinterpret_cast<Key*>(bytes_.get());
    for (size_t i = 0; i < keys.size(); ++i) to[i] = static_cast<Key>(keys[i]);
    return absl::Span<const Key>(to, keys.size());
  }

  const size_t first_;  // byte of values_
  std::unique_ptr<std::byte[]> bytes_;
  size_t num_key_bytes_ = 0;
  std::unique_ptr<std::byte[]> values_;
  size_t num_value_bytes_ = 0;
  InputKeys keys_;
};

class ImportTest : public ::testing::Test {
 protected:
  void SetUp() override { DeviceArrays::num_released = 0; }
  void TearDown() override { DeviceArrays::Kept().clear(); }
};

bool HasLength(const TensorSpec& spec, const RawTensor& raw) {
  return !raw.has_values || raw.values.size() == raw.keys.size() * spec.row_width * SizeOf(spec.dtype);
}

// Lends the arrays of a tensor. `spec` outlives what is returned.
DeviceUpdate Lend(const TensorSpec& spec, const RawTensor& raw, double weight, Rng& rng) {
  auto arrays = std::make_shared<DeviceArrays>(raw, SizeOf(spec.dtype), rng);
  bool is_all = spec.layout == Layout::kDense && raw.keys.size() == spec.num_rows;
  for (size_t i = 0; i < raw.keys.size(); ++i) is_all &= raw.keys[i] == i;
  const InputKeys keys = is_all ? InputKeys(KeyRun{0, spec.num_rows}) : arrays->keys();
  const std::byte* const values = arrays->values();
  return {&spec, keys, values, std::move(arrays), weight};
}

// Imports one update.
absl::StatusOr<ValidatedUpdate> ImportOne(Engine& engine, DeviceUpdate update) {
  std::vector<ValidatedUpdate> imported;
  RETURN_IF_ERROR(engine.Import(absl::MakeSpan(&update, 1), imported));
  return std::move(imported.at(0));
}

// Imports submissions in one call, and in another one after each that is refused; and adds them. Returns: their
// statuses.
std::vector<absl::Status> SubmitFromDevice(Engine& engine, Aggregation& aggregation,
                                           absl::Span<const RawSubmission> submissions, Rng& rng) {
  const std::vector<TensorSpec>& specs = aggregation.tensors();
  std::vector<DeviceUpdate> updates;
  for (const RawSubmission& submission : submissions) {
    for (size_t t = 0; t < specs.size(); ++t) {
      updates.push_back(Lend(specs[t], submission.tensors[t], submission.weight, rng));
    }
  }
  std::vector<absl::Status> statuses;
  while (statuses.size() < submissions.size()) {
    std::vector<ValidatedUpdate> imported;
    const absl::Status refusal =
        engine.Import(absl::MakeSpan(updates).subspan(statuses.size() * specs.size()), imported);
    for (size_t first = 0; first + specs.size() <= imported.size(); first += specs.size()) {
      const auto of_one = absl::MakeConstSpan(imported).subspan(first, specs.size());
      auto prepared = aggregation.Prepare({of_one.begin(), of_one.end()});
      statuses.push_back(prepared.ok() ? aggregation.Add(submissions[statuses.size()].client_id, *std::move(prepared))
                                       : prepared.status());
    }
    if (refusal.ok()) {
      EXPECT_EQ(statuses.size(), submissions.size());
    } else {
      statuses.push_back(refusal);
    }
  }
  return statuses;
}

absl::Status SubmitFromDevice(Engine& engine, Aggregation& aggregation, const RawSubmission& submission, Rng& rng) {
  return SubmitFromDevice(engine, aggregation, absl::MakeConstSpan(&submission, 1), rng)[0];
}

template <typename T>
Column<T> CopyColumn(const T* from, uint64_t count) {
  Column<T> copy(from == nullptr ? 0 : count);
  if (from != nullptr) std::memcpy(copy.data(), from, count * sizeof(T));
  return copy;
}

// A result in "device" memory, as one of the host.
Result ToHost(const DeviceResult& device) {
  Result result;
  result.layout = device.layout;
  result.dtype = device.dtype;
  result.has_values = device.has_values;
  result.row_width = device.row_width;
  result.num_rows = device.num_rows;
  result.num_keys = device.num_keys;
  if (device.key_bytes == sizeof(uint32_t)) {
    result.keys = CopyColumn(static_cast<const uint32_t*>(device.d_keys), device.num_keys);
  } else {
    result.keys = CopyColumn(static_cast<const uint64_t*>(device.d_keys), device.num_keys);
  }
  result.values = CopyColumn(static_cast<const std::byte*>(device.d_values), device.num_keys * result.row_bytes());
  result.counts = CopyColumn(device.d_counts, device.num_keys);
  result.weights = CopyColumn(device.d_weights, device.num_keys);
  return result;
}

absl::StatusOr<std::vector<Result>> FinishOnDevice(Aggregation&& aggregation) {
  ASSIGN_OR_RETURN(const std::vector<DeviceResult> results, std::move(aggregation).FinishOnDevice());
  std::vector<Result> copies;
  for (const DeviceResult& result : results) copies.push_back(ToHost(result));
  return copies;
}

// A round of which all submissions are on the device, or one half, and perhaps the results.
Driven DriveImports(Engine& engine, const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
                    bool all, bool finish_on_device, Rng& rng) {
  Driven driven;
  const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(engine, specs);
  std::vector<RawSubmission> batch;  // for one import
  const auto import = [&] {
    for (absl::Status& status : SubmitFromDevice(engine, *aggregation, batch, rng)) {
      driven.submissions.push_back(std::move(status));
    }
    batch.clear();
  };
  for (const RawSubmission& submission : submissions) {
    bool can_import = true;
    for (size_t t = 0; t < specs.size(); ++t) can_import &= HasLength(specs[t], submission.tensors[t]);
    if (can_import && (all || rng.Coin())) {
      batch.push_back(submission);
      if (rng.Below(4) == 0) import();
    } else {
      import();
      driven.submissions.push_back(Submit(*aggregation, submission));
    }
  }
  import();
  driven.results = finish_on_device ? FinishOnDevice(std::move(*aggregation)) : std::move(*aggregation).Finish();
  return driven;
}

TEST_F(ImportTest, RandomCasesAndBudgets_EqualTheReference) {
  const uint64_t first = TestSeed(90'000);
  uint64_t num_without_room = 0;
  for (uint64_t seed = first; seed < first + TestCases(400); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    const Case c = RandomCase(seed);
    Rng rng(seed);
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    options.tuning.min_tile_tuples = rng.Pick({0.0, 40.0, 1e300});
    options.tuning.min_pending_bytes = rng.Pick<size_t>({1, 1000, 1'000'000'000});
    options.memory_budget_bytes = rng.Pick<size_t>({100, 2000, 10'000, 100'000, 10'000'000});
    options.cpu.num_threads = 1;
    auto engine = std::make_unique<cuda::DeviceEngine>(
        std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = seed}, FaultPlan{}, &record), options);
    const Verdict verdict = Judge(c.specs, c.submissions);
    const bool finish_on_device = rng.Coin();
    const Driven driven = DriveImports(*engine, c.specs, c.submissions, rng.Coin(), finish_on_device, rng);
    // A small device cannot hold every result, and none of a tensor that it had no memory for before.
    const absl::Status& status = driven.results.status();
    const bool has_gone = absl::IsUnavailable(status) && absl::StrContains(status.message(), "the CPU holds the sums");
    if (finish_on_device && (has_gone || absl::IsResourceExhausted(status))) {
      ++num_without_room;
    } else {
      ASSERT_EQ(Disagreement(c.specs, driven, verdict), "") << Describe(c);
    }
    EXPECT_TRUE(engine->Probe().ok()) << engine->Probe();
    engine.reset();
    EXPECT_EQ(record.num_leaked, 0u);
  }
  EXPECT_LT(num_without_room, TestCases(400) / 2);
}

TensorSpec FloatSum() {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 1000;
  spec.row_width = 2;
  return spec;
}

RawSubmission FloatSubmission(const TensorSpec& spec, std::string client_id, Rng& rng,
                              KeyOrder order = KeyOrder::kShuffled, ValueStyle style = ValueStyle::kCancelling) {
  RawTensor raw;
  raw.keys = RandomKeys(rng, spec.num_rows, 300, KeyStyle::kUniform, order);
  raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, style);
  return {std::move(client_id), 1.0, {std::move(raw)}};
}

TEST_F(ImportTest, CopiesNothingFromOrToTheHost_AndKeepsTheArraysUntilTheyAreMerged) {
  const std::vector<TensorSpec> specs = {FloatSum()};
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = 1}), {});
  Rng rng(TestSeed(1));
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 5; ++i) submissions.push_back(FloatSubmission(specs[0], std::to_string(i), rng));
  const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(engine, specs);
  for (const RawSubmission& submission : submissions) {
    ASSERT_TRUE(SubmitFromDevice(engine, *aggregation, submission, rng).ok());
  }
  EXPECT_EQ(DeviceArrays::num_released, 0u);
  EXPECT_LT(aggregation->memory_bytes(), 10'000u);  // in host memory
  const auto results = std::move(*aggregation).Finish();
  EXPECT_EQ(DeviceArrays::num_released, 5u);
  EXPECT_EQ(engine.use().staged_bytes + engine.use().direct_bytes, 0u);
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
  Driven driven{std::vector<absl::Status>(5), results};
  EXPECT_EQ(Disagreement(specs, driven, Judge(specs, submissions)), "");
}

TEST_F(ImportTest, ErrorsAreThoseOfTheHost) {
  TensorSpec spec = FloatSum();
  spec.num_rows = 10;
  spec.row_width = 1;
  const std::vector<float> values = {1, 2, std::numeric_limits<float>::quiet_NaN()};
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  const std::vector<int64_t> negative = {1, -2};
  const std::vector<uint32_t> beyond = {1, 10};
  const std::vector<int32_t> good = {1, 2, 3};
  TensorSpec dense = spec;
  dense.layout = Layout::kDense;
  struct Bad {
    TensorSpec spec;
    InputKeys keys;
    const std::byte* values;
    double weight;
  };
  const std::vector<Bad> bad = {{spec, absl::MakeConstSpan(negative), bytes, 1.0},
                                {spec, absl::MakeConstSpan(beyond), bytes, 1.0},
                                {spec, absl::MakeConstSpan(good), bytes, 1.0},
                                {spec, absl::MakeConstSpan(good), nullptr, 1.0},
                                {spec, KeyRun{8, 3}, bytes, 1.0},
                                {spec, KeyRun{1, ~uint64_t{0}}, bytes, 1.0},
                                {spec, absl::MakeConstSpan(good).first(2), bytes, -1.0},
                                {dense, absl::MakeConstSpan(good).first(2), bytes, 1.0}};
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = 2}), {});
  for (const Bad& b : bad) {
    const absl::Status expected =
        ValidatedUpdate::CreateWithCopiedKeys(b.spec, b.keys, b.values, nullptr, b.weight).status();
    EXPECT_EQ(expected.code(), absl::StatusCode::kInvalidArgument);
    const DeviceUpdate refused = {&b.spec, b.keys, b.values, nullptr, b.weight};
    const DeviceUpdate taken = {&spec, absl::MakeConstSpan(good).first(2), bytes, nullptr, 1.0};
    // Those before it are imported, and those after it are left alone, whatever is wrong with them.
    for (size_t num_before : {0, 1, 2, 5}) {
      std::vector<DeviceUpdate> updates(num_before, taken);
      for (const DeviceUpdate& update : {refused, taken, refused}) updates.push_back(update);
      for (const Bad& other : bad) updates.push_back({&other.spec, other.keys, other.values, nullptr, other.weight});
      std::vector<ValidatedUpdate> imported;
      EXPECT_EQ(engine.Import(absl::MakeSpan(updates), imported), expected);
      EXPECT_EQ(imported.size(), num_before);
    }
  }
  EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
  EXPECT_EQ(ImportOne(*CreateCpuEngine(), {&spec, KeyRun{0, 2}, bytes}).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(ImportTest, ArraysElsewhereAreRefused_AndTheDeviceGoesOn) {
  TensorSpec spec = FloatSum();
  spec.row_width = 1;
  const std::vector<float> values = {1, 2};
  const std::vector<int32_t> keys = {1, 2};
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  for (const void* const foreign : {static_cast<const void*>(keys.data()), static_cast<const void*>(bytes)}) {
    cuda::HostDeviceOptions options;
    options.elsewhere = [foreign](const void* at) { return at == foreign ? "the memory of CUDA device 1" : ""; };
    options.run_kernel = [](const cuda::KernelCall&) { ADD_FAILURE() << "a kernel ran"; };
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(options), {});
    const absl::Status refused = ImportOne(engine, {&spec, absl::MakeConstSpan(keys), bytes}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                ::testing::MatchesRegex("tensor 't': its (keys|values) are in the memory of CUDA device 1, but the "
                                        "engine reads CUDA device 0; copy them there, or to host memory"));
    EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
  }
}

// A device that remembers for which streams it waits, and knows no stream 13.
class FollowingDevice : public cuda::HostDevice {
 public:
  explicit FollowingDevice(std::vector<uintptr_t>& followed) : followed_(followed) {}
  absl::Status Follow(uintptr_t stream, cuda::Lane lane) override {
    EXPECT_EQ(lane, cuda::Lane::kCopy);
    if (stream == 13) return absl::InternalError("no such stream");
    followed_.push_back(stream);
    return absl::OkStatus();
  }

 private:
  std::vector<uintptr_t>& followed_;
};

TEST_F(ImportTest, WaitsForEachStreamOnce_AndSaysWhereItCannot) {
  TensorSpec spec = FloatSum();
  const DeviceUpdate empty = {&spec, KeyRun{0, 0}, nullptr};
  std::vector<DeviceUpdate> updates(6, empty);
  updates[0].streams = {1, 0};
  updates[1].streams = {7, 1};
  updates[3].streams = {0, 7};
  updates[4].streams = {2, 2};
  std::vector<uintptr_t> followed;
  cuda::DeviceEngine engine(std::make_unique<FollowingDevice>(followed), {});
  std::vector<ValidatedUpdate> imported;
  EXPECT_EQ(engine.Import(absl::MakeSpan(updates), imported), absl::OkStatus());
  EXPECT_EQ(imported.size(), 6u);
  EXPECT_THAT(followed, ::testing::ElementsAre(1, 7, 2));
  updates[3].streams = {0, 13};
  imported.clear();
  EXPECT_EQ(engine.Import(absl::MakeSpan(updates), imported),
            absl::InvalidArgumentError("tensor 't': CUDA device 0 cannot wait for the stream that an array names, as "
                                       "where the array is on another GPU: no such stream"));
  EXPECT_EQ(imported.size(), 3u);
  EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
}

// Of any number of updates: an allocation for the keys and one for the table, a copy in, a kernel, and a copy out.
TEST_F(ImportTest, TakesAsManyCallsOfTheDeviceForAThousandUpdatesAsForOne) {
  const uint64_t seed = TestSeed(4);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  const TensorSpec spec = FloatSum();
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 1000; ++i) submissions.push_back(FloatSubmission(spec, std::to_string(i), rng));
  struct FaultyDevice::Record record;
  cuda::DeviceEngine engine(
      std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = seed}, FaultPlan{}, &record), {});
  const auto import = [&](size_t count) {
    std::vector<DeviceUpdate> updates;
    for (size_t i = 0; i < count; ++i) updates.push_back(Lend(spec, submissions[i].tensors[0], 1.0, rng));
    std::vector<ValidatedUpdate> imported;
    const uint64_t num_calls = record.num_calls;
    const uint64_t num_launches = record.num_launches;
    EXPECT_EQ(engine.Import(absl::MakeSpan(updates), imported), absl::OkStatus());
    EXPECT_EQ(imported.size(), count);
    EXPECT_LE(record.num_launches - num_launches, 2u);  // the check; few findings are copied by a kernel
    const uint64_t calls = record.num_calls - num_calls;
    const uint64_t before = record.num_calls;
    imported.clear();
    EXPECT_EQ(record.num_calls - before, 2u) << "a wait for all that is borrowed, and one for the keys";
    return calls;
  };
  for (int i = 0; i < 10; ++i) import(100);  // pinned buffers and events
  EXPECT_LE(import(1), 13u);
  EXPECT_LE(import(100), 13u);
  EXPECT_EQ(import(1000), import(100));
  EXPECT_EQ(DeviceArrays::num_released, 2201u);
}

// Updates in device memory that are never merged before the end would fill it, whatever the keys are.
TEST_F(ImportTest, WhereTheOrderDoesNotMatter_UpdatesAreMergedOnArrival) {
  const uint64_t seed = TestSeed(7);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  TensorSpec integers = FloatSum();
  integers.dtype = DType::kInt64;
  TensorSpec binned = FloatSum();
  binned.aggregation.numerics = Numerics::kBinned;
  std::vector<TensorSpec> all = {integers, binned};
  for (const Op op : {Op::kMin, Op::kMax, Op::kUnion}) {
    all.push_back(FloatSum());
    all.back().aggregation.op = op;
  }
  for (const TensorSpec& spec : all) {
    const std::vector<TensorSpec> specs = {spec};
    Rng rng(seed);
    cuda::DeviceEngineOptions options;
    options.tuning.min_pending_bytes = 20'000;
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = seed}),
                              options);
    const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(engine, specs);
    std::vector<RawSubmission> submissions;
    for (int i = 0; i < 40; ++i) {
      RawSubmission submission =
          FloatSubmission(spec, std::to_string(i), rng, KeyOrder::kShuffled, ValueStyle::kSmallIntegers);
      if (spec.aggregation.op == Op::kUnion) submission.tensors[0] = {submission.tensors[0].keys, {}, false};
      ASSERT_TRUE(SubmitFromDevice(engine, *aggregation, submission, rng).ok());
      submissions.push_back(std::move(submission));
      EXPECT_LE(static_cast<size_t>(i) + 1 - DeviceArrays::num_released, 25u) << "updates wait on the device";
    }
    EXPECT_GE(DeviceArrays::num_released, 15u);
    const Driven driven{std::vector<absl::Status>(40), std::move(*aggregation).Finish()};
    EXPECT_EQ(Disagreement(specs, driven, Judge(specs, submissions)), "");
    EXPECT_EQ(engine.use().num_fallbacks, 0u);
    EXPECT_EQ(engine.use().staged_bytes + engine.use().direct_bytes, 0u) << "merged rows were sent again";
    DeviceArrays::num_released = 0;
  }
}

// What a failing device would hand over to the CPU engine needs host memory: it counts against a limit.
TEST_F(ImportTest, ArraysOnTheDeviceCountInWhatFinishMayTake) {
  TensorSpec spec = FloatSum();
  Rng rng(TestSeed(8));
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  const std::vector<TensorSpec> specs = {spec};
  const auto aggregation = *Aggregation::Create(engine, specs);
  const uint64_t before = aggregation->BytesWith(nullptr);
  const RawSubmission submission = FloatSubmission(spec, "a", rng, KeyOrder::kShuffledUnique);
  ASSERT_TRUE(SubmitFromDevice(engine, *aggregation, submission, rng).ok());
  const uint64_t arrays = submission.tensors[0].keys.size() * (sizeof(uint32_t) + 2 * sizeof(float));
  EXPECT_GE(aggregation->BytesWith(nullptr) - before, arrays + arrays / 2) << "the copy, and the result";
}

TEST_F(ImportTest, SeveralThreadsAtOnce) {
  TensorSpec spec = FloatSum();
  spec.row_width = 1;
  const std::vector<float> values(100, 1.0f);
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  std::vector<int64_t> good(100);
  std::iota(good.begin(), good.end(), int64_t{0});
  std::vector<int64_t> bad = good;
  bad.back() = -1;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const bool is_good = (t + i) % 2 == 0;
        const auto update = ImportOne(engine, {&spec, absl::MakeConstSpan(is_good ? good : bad), bytes});
        if (update.ok() != is_good || (is_good && !update->unique())) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
}

// Whatever call fails: the reference's bits, or an error that says that the arrays are on a device that failed.
TEST_F(ImportTest, FaultsAtEveryCall_GiveTheReferencesBitsOrAnError) {
  const std::vector<TensorSpec> specs = {FloatSum()};
  const uint64_t seed = TestSeed(3);
  Rng data_rng(seed);
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 4; ++i) submissions.push_back(FloatSubmission(specs[0], std::to_string(i), data_rng));
  const Verdict verdict = Judge(specs, submissions);
  for (const Fault fault : {Fault::kOutOfMemory, Fault::kOutOfMemoryNow, Fault::kSticky, Fault::kSilentThenSticky}) {
    size_t num_errors = 0;
    for (uint64_t at_call = 1;; ++at_call) {
      const bool finish_on_device = at_call % 2 == 0 && fault != Fault::kOutOfMemory;
      struct FaultyDevice::Record record;
      cuda::DeviceEngineOptions options;
      options.tuning = TinyTuning();
      options.cpu.num_threads = 1;
      auto engine = std::make_unique<cuda::DeviceEngine>(
          std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = seed}, FaultPlan{fault, at_call},
                                         &record),
          options);
      Rng rng(seed);
      const Driven driven = DriveImports(*engine, specs, submissions, /*all=*/true, finish_on_device, rng);
      engine.reset();
      EXPECT_EQ(record.num_leaked, 0u);
      if (!record.faulted) break;
      SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at call ", at_call));
      std::vector<absl::Status> all = driven.submissions;
      all.push_back(driven.results.status());
      bool failed = false;
      for (const absl::Status& status : all) {
        if (status.ok()) continue;
        failed = true;
        EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) << status;
      }
      if (failed) {
        ++num_errors;
      } else {
        EXPECT_EQ(Disagreement(specs, driven, verdict), "");
      }
    }
    // One failed allocation is made up for; arrays that can no longer be read are not.
    EXPECT_EQ(num_errors > 0, fault != Fault::kOutOfMemory) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace sparseagg::testing
