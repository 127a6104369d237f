// Rounds that do not fit the device's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/merger.h"
#include "host/cpu/cpu_engine.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/reference.h"

namespace sparseagg::testing {
namespace {

using cuda::Lane;

TEST(Batches, RandomCasesAndBudgets_EqualTheReference) {
  const uint64_t first = TestSeed(40'000);
  uint64_t num_sorts = 0;
  for (uint64_t seed = first; seed < first + TestCases(400); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    const Case c = RandomCase(seed);
    Rng rng(seed);
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    options.tuning.max_batch_entries = rng.Pick<uint64_t>({7, 50, 300, 5000, 1'000'000});
    options.tuning.max_repeating_tuples = rng.Pick<uint64_t>({30, 1'000'000});
    options.tuning.medium_segment = rng.Pick<uint32_t>({1, 2, 5, 40});
    options.tuning.long_segment = rng.Pick<uint32_t>({1, 8, 50, 1000});
    options.tuning.min_tile_tuples = rng.Pick({0.0, 40.0, 1e300});
    options.tuning.min_matrix_tuples = rng.Pick<uint32_t>({1, 30, UINT32_MAX});
    options.tuning.min_pending_bytes = rng.Pick<size_t>({1, 1000, 1'000'000'000});
    options.tuning.slab_bytes = rng.Pick<size_t>({0, 600, 5000});
    options.memory_budget_bytes = rng.Pick<size_t>({100, 2000, 10'000, 100'000, 10'000'000});
    // Sometimes the device has less than it said.
    const size_t real_bytes = rng.Coin() ? ~size_t{0} : options.memory_budget_bytes / 2;
    options.cpu.num_threads = 1;
    auto engine = std::make_unique<cuda::DeviceEngine>(
        std::make_unique<FaultyDevice>(
            cuda::HostDeviceOptions{.memory_bytes = real_bytes, .torture_seed = seed, .all_pinned = rng.Coin()},
            FaultPlan{}, &record),
        options);
    const Verdict verdict = Judge(c.specs, c.submissions);
    for (int ways = 0; ways < 2; ++ways) {
      const DriveOptions drive = {.shuffle_seed = seed + ways, .num_aggregations = 1 + ways};
      ASSERT_EQ(Disagreement(c.specs, Drive(*engine, c.specs, c.submissions, drive), verdict), "") << Describe(c);
    }
    EXPECT_TRUE(engine->Probe().ok()) << engine->Probe();
    engine.reset();
    EXPECT_EQ(record.num_leaked, 0u);
    num_sorts += record.num_sorts;
  }
  EXPECT_GE(num_sorts, 2 * TestCases(400)) << "the device is hardly used";
}

struct Merged {
  std::string disagreement;
  struct FaultyDevice::Record record;
};

// A canonical sum over 30 submissions of 100 tuples, on the sort path of a device that has `real_bytes`.
Merged MergeWithin(size_t budget_bytes, KeyOrder order, size_t real_bytes = ~size_t{0}, size_t slab_bytes = 0) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 200;
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(77));
  for (int i = 0; i < 30; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, 100, KeyStyle::kUniform, order);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({"client " + std::to_string(i), 1.0, {std::move(raw)}});
  }
  Merged merged;
  cuda::DeviceEngineOptions options;
  options.memory_budget_bytes = budget_bytes;
  options.tuning.min_tile_tuples = 1e300;
  options.tuning.slab_bytes = slab_bytes;
  options.tuning.min_slab_run = 1;
  cuda::DeviceEngine engine(
      std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.memory_bytes = real_bytes, .torture_seed = 9},
                                     FaultPlan{}, &merged.record),
      options);
  merged.disagreement = Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions));
  return merged;
}

TEST(Batches, RoomForSome_SeveralBatchesInCanonicalOrder) {
  for (const KeyOrder order : {KeyOrder::kSortedUnique, KeyOrder::kShuffled}) {
    const Merged merged = MergeWithin(50'000, order);
    EXPECT_EQ(merged.disagreement, "");
    EXPECT_GE(merged.record.num_sorts, 3u);
    EXPECT_LE(merged.record.num_sorts, 30u) << "batches are smaller than they need be";
    EXPECT_EQ(merged.record.num_results, 1u);
  }
}

// Counts attempts, and what was sent.
class CountingDevice : public FaultyDevice {
 public:
  struct Counts {
    int attempts = 0;
    uint64_t sent_bytes = 0;
    uint64_t sorted_entries = 0;
    uint64_t tile_searches = 0;
  };
  CountingDevice(struct FaultyDevice::Record* record, Counts* counts)
      : FaultyDevice(cuda::HostDeviceOptions(), FaultPlan{}, record), counts_(*counts) {}

  absl::Status Enter() override {
    ++counts_.attempts;
    return FaultyDevice::Enter();
  }
  absl::Status CopyIn(void* d_to, const void* from, size_t bytes, Lane lane) override {
    counts_.sent_bytes += bytes;
    return FaultyDevice::CopyIn(d_to, from, bytes, lane);
  }
  absl::StatusOr<int> Sort(cuda::SortCall& call) override {
    if (call.d_scratch != nullptr) counts_.sorted_entries += call.count;
    return FaultyDevice::Sort(call);
  }
  absl::Status LaunchOn(const cuda::KernelCall& call, Lane lane) override {
    if (const auto* find = std::get_if<cuda::FindTileBounds>(&call)) counts_.tile_searches += find->size();
    return FaultyDevice::LaunchOn(call, lane);
  }

 private:
  Counts& counts_;
};

struct Counted {
  CountingDevice::Counts counts;
  uint64_t num_results = 0;
};

// A sum over `keys`, one submission each, on the sort path of a device with room for so much.
Counted CountMerge(uint64_t num_rows, const std::vector<std::vector<uint64_t>>& keys, size_t budget_bytes,
                   uint64_t max_batch_entries, size_t slab_bytes = 0) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = num_rows;
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(78));
  for (const std::vector<uint64_t>& each : keys) {
    RawTensor raw;
    raw.keys = each;
    raw.values = RandomValues(rng, spec.dtype, each.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", submissions.size()), 1.0, {std::move(raw)}});
  }
  Counted counted;
  struct FaultyDevice::Record record;
  cuda::DeviceEngineOptions options;
  options.memory_budget_bytes = budget_bytes;
  options.tuning.min_tile_tuples = 1e300;
  options.tuning.max_batch_entries = max_batch_entries;
  options.tuning.slab_bytes = slab_bytes;
  cuda::DeviceEngine engine(std::make_unique<CountingDevice>(&record, &counted.counts), options);
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  counted.num_results = record.num_results;
  return counted;
}

constexpr size_t kMuchMemory = size_t{1} << 40;
constexpr uint64_t kManyEntries = uint64_t{1} << 30;

TEST(Batches, RowsDoNotFit_GivenUpAtOnce) {
  // Nobody has a key that another has.
  std::vector<std::vector<uint64_t>> keys(50);
  for (uint64_t i = 0; i < 20'000; ++i) keys[i % keys.size()].push_back(1000 * i);
  for (const auto& [budget_bytes, max_entries] :
       {std::pair(size_t{300'000}, kManyEntries), std::pair(kMuchMemory, uint64_t{5000})}) {
    for (const uint64_t num_rows : {uint64_t{0}, uint64_t{1} << 30}) {
      const Counted counted = CountMerge(num_rows, keys, budget_bytes, max_entries);
      EXPECT_EQ(counted.num_results, 0u) << "they do fit";
      EXPECT_EQ(counted.counts.attempts, 1);
      EXPECT_LE(counted.counts.sorted_entries, 100'000u);
    }
  }
}

TEST(Batches, RowsFitInSeveralBatches_OneAttempt_EveryTupleIsSentOnce) {
  // Each has 400 of the same 500 keys.
  std::vector<std::vector<uint64_t>> keys(50);
  for (uint64_t client = 0; client < keys.size(); ++client) {
    for (uint64_t key = 0; key < 500; ++key) {
      if (key % 5 != client % 5) keys[client].push_back(key);
    }
  }
  size_t num_tuples = 0;
  for (const std::vector<uint64_t>& each : keys) num_tuples += each.size();
  for (const auto& [budget_bytes, max_entries] :
       {std::pair(size_t{100'000}, kManyEntries), std::pair(kMuchMemory, uint64_t{1200})}) {
    for (const uint64_t num_rows : {uint64_t{0}, uint64_t{500}}) {
      SCOPED_TRACE(absl::StrCat(num_tuples, " tuples, budget ", budget_bytes, ", ", max_entries, " entries, num_rows ",
                                num_rows));
      const Counted counted = CountMerge(num_rows, keys, budget_bytes, max_entries);
      EXPECT_EQ(counted.num_results, 1u) << "the CPU engine had to do it";
      EXPECT_EQ(counted.counts.attempts, 1);
      // Keys, values, and what tells the batches' sources apart.
      EXPECT_LE(counted.counts.sent_bytes, num_tuples * (num_rows == 0 ? 12 : 8) * 3 / 2 + 20'000);
    }
  }
}

// What would not fit as rows fits slab by slab.
// One thread adds all of a source's repetitions of a key where sums of them are folded in any order.
TEST(Batches, RepeatedKeys_BatchesOfFewTuples_OrTheCpu) {
  for (const auto& [op, dtype, is_bounded] :
       {std::tuple(Op::kMin, DType::kFloat32, true), std::tuple(Op::kMax, DType::kInt32, true),
        std::tuple(Op::kSum, DType::kFloat32, false), std::tuple(Op::kSum, DType::kInt32, false)}) {
    TensorSpec spec;
    spec.name = "t";
    spec.num_rows = 5;
    spec.dtype = dtype;
    spec.aggregation.op = op;
    std::vector<RawSubmission> submissions;
    Rng rng(TestSeed(80));
    for (int i = 0; i < 10; ++i) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, spec.num_rows, 40, KeyStyle::kZipf, KeyOrder::kShuffled);
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kSmallIntegers);
      submissions.push_back({absl::StrCat("client ", i), 1.0, {std::move(raw)}});
    }
    for (const uint64_t max_tuples : {30, 100}) {
      struct FaultyDevice::Record record;
      cuda::DeviceEngineOptions options;
      options.tuning.max_repeating_tuples = max_tuples;
      cuda::DeviceEngine engine(
          std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = 5}, FaultPlan{}, &record), options);
      EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
      EXPECT_EQ(engine.use().num_fallbacks, is_bounded && max_tuples < 40 ? 1u : 0u);
      EXPECT_EQ(record.num_sorts, !is_bounded ? 1u : max_tuples < 40 ? 0u : 5u) << "two updates in a batch";
    }
  }
}

// A result of which rows need no more than division and rounding is what the last fold has written.
TEST(Batches, SparseResultsOfFloats_AreWrittenByTheLastFoldAlone) {
  size_t num_cases = 0;
  for (TensorSpec spec : EveryCombination()) {
    if (spec.aggregation.result_layout != ResultLayout::kSparse) continue;
    spec.row_width = 1 + 7 * (num_cases % 2);
    std::vector<RawSubmission> submissions;
    Rng rng(TestSeed(79) + num_cases++);
    for (int i = 0; i < 12; ++i) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, spec.num_rows, 50, KeyStyle::kZipf, KeyOrder::kShuffled);
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kSmallIntegers);
      submissions.push_back({absl::StrCat("client ", i), 1.0 + i % 3, {std::move(raw)}});
    }
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning.min_tile_tuples = 1e300;
    cuda::DeviceEngine engine(
        std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = 5}, FaultPlan{}, &record), options);
    ASSERT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "")
        << Describe(spec);
    const bool has_values = spec.aggregation.op != Op::kUnion;
    EXPECT_EQ(record.num_rounded, has_values && IsFloat(spec.dtype) ? 1u : 0u) << Describe(spec);
    EXPECT_EQ(record.num_results, has_values ? 1u : 0u) << Describe(spec);
  }
  EXPECT_GE(num_cases, 50u);
}

TEST(Slabs, RowsDoNotFit_OneAttempt_EveryTupleIsSentOnce) {
  std::vector<std::vector<uint64_t>> keys(50);
  for (uint64_t i = 0; i < 20'000; ++i) keys[i % keys.size()].push_back(1000 * i);
  for (const auto& [budget_bytes, max_entries] :
       {std::pair(size_t{300'000}, kManyEntries), std::pair(kMuchMemory, uint64_t{5000})}) {
    const Counted counted = CountMerge(uint64_t{1} << 30, keys, budget_bytes, max_entries, size_t{1} << 20);
    EXPECT_GT(counted.num_results, 1u) << "the CPU engine had to do it";
    EXPECT_EQ(counted.counts.attempts, 1);
    EXPECT_EQ(counted.counts.sorted_entries, 20'000u);
    // Keys, values, and what tells the sources of each slab apart.
    EXPECT_LE(counted.counts.sent_bytes, 20'000 * 8 * 3 / 2 + 20'000);
  }
}

TEST(Slabs, RoomForSome_AsManyAsFit) {
  const Merged merged = MergeWithin(50'000, KeyOrder::kSortedUnique, ~size_t{0}, size_t{1} << 20);
  EXPECT_EQ(merged.disagreement, "");
  EXPECT_GE(merged.record.num_results, 3u);
  EXPECT_LE(merged.record.num_results, 30u) << "slabs are smaller than they need be";
}

// Dense keys in a small part of the tensor's keys.
TEST(Slabs, DenseKeysOfASparseTensor_TilesOfTheSlabsOwnRange) {
  constexpr uint64_t kFirstKey = 1'000'000'000;
  constexpr uint64_t kNumKeys = 40'000;
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 2 * kFirstKey;
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(79));
  for (int i = 0; i < 20; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, kNumKeys, kNumKeys / 2, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    for (uint64_t& key : raw.keys) key += kFirstKey;
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", i), 1.0, {std::move(raw)}});
  }
  const Verdict verdict = Judge({spec}, submissions);
  for (const bool resident : {false, true}) {
    SCOPED_TRACE(resident ? "on the device" : "on the host");
    CountingDevice::Counts counts;
    struct FaultyDevice::Record record;
    cuda::DeviceEngineOptions options;
    options.tuning.slab_bytes = 400'000;
    if (!resident) options.tuning.max_resident_share = 0;
    cuda::DeviceEngine engine(std::make_unique<CountingDevice>(&record, &counts), options);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), verdict), "");
    EXPECT_EQ(record.num_sorts, 0u);
    // Every slab writes a result. Slabs would gain nothing for what is on the device.
    EXPECT_EQ(record.num_results > 1, !resident) << record.num_results;
    const uint64_t num_tiles = kNumKeys / cuda::kMinTileSlots + 1;
    EXPECT_LE(counts.tile_searches, (num_tiles + 2 * record.num_results) * submissions.size());
  }
}

TEST(Batches, SecondRound_AllocatesNoHostMemory) {
  TensorSpec spec;
  spec.name = "t";
  RawTensor raw;
  raw.keys = {3, 1, 2};
  raw.values.assign(3 * sizeof(float), '\0');
  struct FaultyDevice::Record record;
  cuda::DeviceEngine engine(std::make_unique<FaultyDevice>(cuda::HostDeviceOptions(), FaultPlan{}, &record), {});
  ASSERT_TRUE(Drive(engine, {spec}, {{"a", 1.0, {raw}}}).results.ok());
  const uint64_t after_first = record.num_pinned;
  EXPECT_GT(after_first, 0u);
  ASSERT_TRUE(Drive(engine, {spec}, {{"a", 1.0, {raw}}}).results.ok());
  EXPECT_EQ(record.num_pinned, after_first);
  EXPECT_EQ(record.num_results, 2u);
}

// The bytes of a dense result that wrap to none. An aggregation refuses such a round; an accumulator has no memory.
TEST(DenseResult, BytesBeyond64Bits_NoMemory_AsOnTheCpu) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = uint64_t{1} << 62;
  spec.row_width = 4;
  spec.aggregation.result_layout = ResultLayout::kDense;
  const RawTensor raw{.keys = {5}, .values = std::string(4 * sizeof(float), '\0')};
  const std::unique_ptr<Engine> cpu = CreateCpuEngine({});
  cuda::DeviceEngine device(std::make_unique<cuda::HostDevice>(), {});
  for (Engine* engine : {cpu.get(), static_cast<Engine*>(&device)}) {
    SCOPED_TRACE(engine->description());
    EXPECT_THROW(std::move(**engine->CreateAccumulator(spec)).Finish({}).status().IgnoreError(), std::bad_alloc);
    const std::unique_ptr<Accumulator> accumulator = *engine->CreateAccumulator(spec);
    auto updates = *BuildUpdates({spec}, {"a", 1.0, {raw}});
    ASSERT_TRUE(accumulator->Add(*accumulator->Prepare(std::move(updates[0]))).ok());
    const std::vector<uint32_t> order = {0};
    EXPECT_THROW(std::move(*accumulator).Finish(order).status().IgnoreError(), std::bad_alloc);
  }
}

// ---- Tiles

TEST(Tiles, RandomCases_EqualTheReference) {
  const uint64_t first = TestSeed(60'000);
  uint64_t num_launches = 0;
  uint64_t num_sorts = 0;  // of keys that are spread too unevenly for tiles
  for (uint64_t seed = first; seed < first + TestCases(60); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    const Case c = RandomTileCase(seed, /*num_tuples=*/20'000);
    Rng rng(seed);
    cuda::DeviceEngineOptions options;
    options.tuning.min_tile_tuples = options.tuning.min_tile_run = 0;
    options.tuning.min_matrix_tuples = rng.Pick<uint32_t>({1, 100, UINT32_MAX});
    options.tuning.max_tile_tuples = rng.Pick<uint32_t>({0, 100, 1536, cuda::kMaxSorted});
    options.tuning.max_batch_entries = rng.Pick<uint64_t>({30'000, 1'000'000'000});  // later batches have base rows
    options.tuning.slab_bytes = rng.Pick<size_t>({0, 20'000});
    options.cpu.num_threads = 1;
    struct FaultyDevice::Record record;
    cuda::DeviceEngine engine(
        std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.torture_seed = seed}, FaultPlan{}, &record), options);
    DriveOptions drive;
    if (!OrderMatters(c.specs[0]) && rng.Coin()) drive.fold_seed = seed;
    ASSERT_EQ(Disagreement(c.specs, Drive(engine, c.specs, c.submissions, drive), Judge(c.specs, c.submissions)), "")
        << Describe(c);
    uint64_t first_key = UINT64_MAX;
    uint64_t last_key = 0;
    for (const RawSubmission& submission : c.submissions) {
      for (const uint64_t key : submission.tensors[0].keys) {
        first_key = std::min(first_key, key);
        last_key = std::max(last_key, key);
      }
    }
    // In so small a range, parts are matrices or the only one.
    if (last_key < first_key + 256 * cuda::kMatrixSlots) {
      EXPECT_EQ(record.num_sorts, 0u);
    }
    num_launches += record.num_launches;
    num_sorts += record.num_sorts;
  }
  EXPECT_GE(num_launches, 4 * TestCases(60)) << "the device is hardly used";
  EXPECT_LE(num_sorts, num_launches / 10);
}

// Tiles with as many tuples as a block can sort, and with more; tiles without tuples, also at the end; without and
// after rows of an earlier merge; without and with a factor of the values.
TEST(Tiles, FullAndEmptyTiles_AllRows) {
  constexpr uint32_t kFullTiles = 8;
  for (const auto& [num_updates, factor] : {std::pair(1, 1.0), std::pair(3, 1.0), std::pair(1, 0.5)}) {
    TensorSpec spec;
    spec.name = "t";
    if (factor != 1.0) spec.clip.l2 = 1.0;
    spec.num_rows = 5 * kFullTiles * cuda::kMinTileSlots;
    cuda::Tuning tuning;
    tuning.min_tile_tuples = tuning.min_tile_run = 0;
    tuning.min_matrix_tuples = UINT32_MAX;
    cuda::HostDevice device;
    cuda::Session session(device, size_t{1} << 30, tuning, 1);
    const cuda::TensorShape shape(spec);
    std::vector<uint32_t> keys(kFullTiles * cuda::kMinTileSlots);
    std::iota(keys.begin(), keys.end(), static_cast<uint32_t>(keys.size()));
    const std::vector<float> values(keys.size(), 1.0f);
    UpdateColumns columns;
    columns.keys = absl::MakeConstSpan(keys);
    columns.values = reinterpret_cast<const std::byte*>(values.data());
    const ValidatedUpdate update = ValidatedUpdate::Create(spec, columns, 1.0)->WithFactor(factor);
    cuda::DeviceRows rows;
    for (const double sum : {num_updates * factor, 2 * num_updates * factor}) {
      const cuda::UpdateRange whole = {&update, 0, update.num_keys()};
      cuda::Batch batch = *SendBatch(session, shape, std::vector<cuda::UpdateRange>(num_updates, whole));
      batch.range.Include(3 * keys.size());
      rows = *cuda::Merger(session, shape, 0).MergeBatch(rows, batch, [] { return absl::OkStatus(); });
      ASSERT_EQ(rows.num_rows, keys.size());
      const auto* row_keys = rows[cuda::RowColumn::kKeys].as<uint32_t>();
      EXPECT_TRUE(std::equal(keys.begin(), keys.end(), row_keys));
      const auto* sums = rows[cuda::RowColumn::kAccs].as<double>();
      EXPECT_TRUE(std::all_of(sums, sums + rows.num_rows, [sum](double row) { return row == sum; }));
    }
  }
}

// More tuples with one key than a block can sort, where tiles are too wide for matrices.
TEST(Tiles, OneKeyOfVeryManySources_MergedBySort) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 1'000'000'000;
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(81));
  for (uint64_t i = 0; i <= cuda::kMaxSorted; ++i) {
    RawTensor raw;
    raw.keys = {500'000'000, 500'000'001 + rng.Below(499'999'999)};
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", i), 1.0, {std::move(raw)}});
  }
  for (const size_t num_submissions : {submissions.size(), submissions.size() - 300}) {
    submissions.resize(num_submissions);
    cuda::DeviceEngineOptions options;
    options.tuning.min_tile_tuples = options.tuning.min_tile_run = 0;
    struct FaultyDevice::Record record;
    cuda::DeviceEngine engine(std::make_unique<FaultyDevice>(cuda::HostDeviceOptions(), FaultPlan{}, &record), options);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
    EXPECT_EQ(record.num_sorts, num_submissions > cuda::kMaxSorted ? 1u : 0u);
  }
}

// ---- Keys that their owner changed after the update was validated.

constexpr uint32_t kNumKeys = 40'000;

struct PartsCase {
  uint32_t min_matrix_tuples;
  uint32_t stride;  // between keys
};

std::vector<uint32_t> KeysOf(const PartsCase& parts) {
  std::vector<uint32_t> keys(kNumKeys);
  for (uint32_t i = 0; i < kNumKeys; ++i) keys[i] = 100 + i * parts.stride;
  return keys;
}

// Merges by tiles an update whose keys become `changed` once it is validated.
absl::Status MergeChanged(const std::vector<uint32_t>& changed, const PartsCase& parts) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 3 * kNumKeys * parts.stride;
  std::vector<uint32_t> keys = KeysOf(parts);
  const std::vector<float> values(kNumKeys, 1.0f);
  UpdateColumns columns;
  columns.keys = absl::MakeConstSpan(keys);
  columns.values = reinterpret_cast<const std::byte*>(values.data());
  const ValidatedUpdate update = *ValidatedUpdate::Create(spec, columns, 1.0);
  std::copy(changed.begin(), changed.end(), keys.begin());

  cuda::Tuning tuning;
  tuning.min_tile_tuples = tuning.min_tile_run = 0;
  tuning.min_matrix_tuples = parts.min_matrix_tuples;
  cuda::HostDevice device;
  cuda::Session session(device, size_t{1} << 30, tuning, 1);
  const cuda::TensorShape shape(spec);
  cuda::Batch batch = *SendBatch(session, shape, {{&update, 0, kNumKeys}});
  return cuda::Merger(session, shape, 0)
      .MergeBatch(cuda::DeviceRows(), batch, [] { return absl::OkStatus(); })
      .status();
}

// By matrices, and sorted in small and in wide tiles.
class MalformedKeys : public ::testing::TestWithParam<PartsCase> {
 protected:
  absl::StatusCode Merge() const { return MergeChanged(keys_, GetParam()).code(); }
  std::vector<uint32_t> keys_ = KeysOf(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Parts, MalformedKeys,
                         ::testing::Values(PartsCase{1, 1}, PartsCase{UINT32_MAX, 1}, PartsCase{1, 100}));

TEST_P(MalformedKeys, KeysAsTheyWere_NoError) { EXPECT_EQ(Merge(), absl::StatusCode::kOk); }

TEST_P(MalformedKeys, OneKeyMany_AnErrorAndNoEndlessKernel) {
  std::fill(keys_.begin(), keys_.end(), 7u);
  EXPECT_EQ(Merge(), absl::StatusCode::kInternal);
}

TEST_P(MalformedKeys, AKeyOutsideItsTile_AnError) {
  for (const size_t at : {size_t{0}, size_t{10}, keys_.size() - 1}) {
    const uint32_t num_rows = 3 * kNumKeys * GetParam().stride;
    for (const uint32_t key : {num_rows - 1, num_rows * 50, UINT32_MAX}) {
      if (at + 1 == keys_.size() && key < num_rows) continue;  // such keys ascend
      const uint32_t before = std::exchange(keys_[at], key);
      EXPECT_EQ(Merge(), absl::StatusCode::kInternal) << key << " at " << at;
      keys_[at] = before;
    }
  }
}

TEST_P(MalformedKeys, Descending_AnError) {
  std::reverse(keys_.begin(), keys_.end());
  EXPECT_EQ(Merge(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace sparseagg::testing
