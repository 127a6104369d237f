// The way of results from the device to the host: into pinned memory that serves one round after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/updates/update_builder.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

constexpr size_t kTuples = 3'000;

TensorSpec Spec(ResultLayout layout = ResultLayout::kSparse) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 20'000;
  spec.aggregation.return_counts = true;
  spec.aggregation.result_layout = layout;
  return spec;
}

std::vector<RawSubmission> Submissions(uint64_t seed) {
  Rng rng(seed);
  std::vector<RawSubmission> submissions;
  for (int k = 0; k < 4; ++k) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, Spec().num_rows, kTuples, KeyStyle::kUniform, KeyOrder::kSortedUnique);
    raw.values = RandomValues(rng, DType::kFloat32, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", k), 1.0, {std::move(raw)}});
  }
  return submissions;
}

// A device that counts, whose engine pins 4,000 bytes or more for a column.
struct Bench {
  explicit Bench(size_t max_pinned_bytes, size_t slab_bytes = 0, uint64_t torture_seed = 0) {
    auto host = std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = torture_seed});
    num_pinned = host->PinnedCounter();
    cuda::DeviceEngineOptions options;
    options.tuning.max_pinned_bytes = max_pinned_bytes;
    options.tuning.min_pinned_bytes = 4'000;
    options.tuning.slab_bytes = slab_bytes;
    options.tuning.min_slab_run = 1;
    engine = std::make_unique<cuda::DeviceEngine>(std::make_unique<FaultyDevice>(std::move(host), FaultPlan{}, &record),
                                                  options);
  }

  Result Merge(const std::vector<RawSubmission>& submissions, const TensorSpec& spec = Spec()) {
    const auto aggregation = *Aggregation::Create(*engine, {spec});
    for (const RawSubmission& submission : submissions) {
      EXPECT_TRUE(
          aggregation->Add(submission.client_id, *aggregation->Prepare(*BuildUpdates({spec}, submission))).ok());
    }
    auto results = std::move(*aggregation).Finish();
    EXPECT_TRUE(results.ok()) << results.status();
    return std::move(results->front());
  }

  struct FaultyDevice::Record record;
  std::function<size_t()> num_pinned;  // allocations that were not freed
  std::unique_ptr<cuda::DeviceEngine> engine;
};

std::string Difference(const Result& result, uint64_t seed, const TensorSpec& spec = Spec()) {
  std::vector<Result> results;
  results.push_back(result);
  const Driven driven = {std::vector<absl::Status>(4), std::move(results)};
  return Disagreement({spec}, driven, Judge({spec}, Submissions(seed)));
}

bool IsPinned(const Result& result) {
  const bool keys = std::visit([](const auto& column) { return column.is_lent() || column.empty(); }, result.keys);
  return keys && result.values.is_lent() && result.counts.is_lent();
}

constexpr size_t kPlenty = size_t{16} << 20;

TEST(PinnedResults, ACopyForEachColumn_AndTheNextRoundHasTheSameMemory) {
  const uint64_t seed = TestSeed(61);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense}) {
    const TensorSpec spec = Spec(layout);
    Bench bench(kPlenty);
    const std::byte* values = nullptr;
    uint64_t num_pinned = 0;
    for (uint64_t round = 0; round < 4; ++round) {
      bench.record.num_copies_out = 0;
      const Result result = bench.Merge(Submissions(seed + round), spec);
      EXPECT_EQ(Difference(result, seed + round, spec), "");
      EXPECT_TRUE(IsPinned(result));
      EXPECT_EQ(bench.record.num_copies_out, layout == ResultLayout::kSparse ? 3u : 2u);
      if (round > 0) {
        EXPECT_EQ(result.values.data(), values);
        EXPECT_EQ(bench.record.num_pinned, num_pinned);
      }
      values = result.values.data();
      num_pinned = bench.record.num_pinned;
    }
    EXPECT_EQ(bench.engine->use().num_fallbacks, 0u);
  }
}

TEST(PinnedResults, ResultsThatLive_KeepTheirMemory_WhateverTheOrderTheyGoIn) {
  for (uint64_t seed = TestSeed(62), end = seed + 6; seed < end; ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
    Rng rng(seed);
    Bench bench(kPlenty, seed % 2 == 0 ? 10'000 : 0, /*torture_seed=*/seed);
    std::vector<std::pair<uint64_t, Result>> living;
    for (uint64_t round = 0; round < 12; ++round) {
      living.emplace_back(seed + round, bench.Merge(Submissions(seed + round)));
      EXPECT_TRUE(IsPinned(living.back().second));
      while (living.size() > 3 || (living.size() > 1 && rng.Coin())) {
        const auto gone = living.begin() + static_cast<std::ptrdiff_t>(rng.Below(living.size()));
        EXPECT_EQ(Difference(gone->second, gone->first), "");
        living.erase(gone);
      }
    }
    bench.engine.reset();
    EXPECT_GT(bench.num_pinned(), 0u);
    for (const auto& [of, result] : living) EXPECT_EQ(Difference(result, of), "") << "after the engine";
    living.clear();
    EXPECT_EQ(bench.num_pinned(), 0u);
  }
}

TEST(PinnedResults, WithoutRoom_TheSameBitsInOtherMemory) {
  const uint64_t seed = TestSeed(63);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  for (const size_t slab_bytes : {size_t{0}, size_t{10'000}}) {
    Bench none(0, slab_bytes);
    const Result result = none.Merge(Submissions(seed));
    EXPECT_FALSE(result.values.is_lent());
    EXPECT_EQ(Difference(result, seed), "");

    Bench few(200'000, slab_bytes);  // for one result
    std::optional<Result> first = few.Merge(Submissions(seed));
    const Result second = few.Merge(Submissions(seed + 1));
    EXPECT_TRUE(IsPinned(*first));
    EXPECT_FALSE(IsPinned(second));
    EXPECT_EQ(Difference(*first, seed), "");
    EXPECT_EQ(Difference(second, seed + 1), "");
    first.reset();
    const Result third = few.Merge(Submissions(seed + 2));
    EXPECT_TRUE(IsPinned(third));
    EXPECT_EQ(Difference(third, seed + 2), "");
    EXPECT_EQ(few.engine->use().num_fallbacks, 0u);
  }
}

// As of a machine that lets a process pin no more.
TEST(PinnedResults, MemoryCannotBePinned_TheSameBitsInOtherMemory) {
  class FewPinned : public cuda::HostDevice {
   public:
    absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) override {
      if (bytes < size_t{4} << 20 && bytes > 4'000) return absl::ResourceExhaustedError("made to have none");
      return HostDevice::AllocatePinned(bytes);
    }
  };
  const uint64_t seed = TestSeed(64);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Bench bench(kPlenty);
  cuda::DeviceEngineOptions options;
  options.tuning.min_pinned_bytes = 4'000;
  bench.engine = std::make_unique<cuda::DeviceEngine>(std::make_unique<FewPinned>(), options);
  const Result result = bench.Merge(Submissions(seed));
  EXPECT_FALSE(IsPinned(result));
  EXPECT_EQ(Difference(result, seed), "");
  EXPECT_EQ(bench.engine->use().num_fallbacks, 0u);
}

TEST(PinnedResults, ReleaseDeviceMemory_GivesBackWhatNoResultUses) {
  const uint64_t seed = TestSeed(65);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Bench bench(kPlenty);
  { Bench(kPlenty).Merge(Submissions(seed)); }
  std::optional<Result> first = bench.Merge(Submissions(seed));
  const Result second = bench.Merge(Submissions(seed + 1));
  const size_t before = bench.num_pinned();
  bench.engine->ReleaseDeviceMemory();
  EXPECT_EQ(bench.num_pinned(), before) << "results live";
  first.reset();
  EXPECT_EQ(bench.num_pinned(), before);
  bench.engine->ReleaseDeviceMemory();
  EXPECT_EQ(bench.num_pinned(), before - 3);
  EXPECT_EQ(Difference(second, seed + 1), "");
}

// Blocks of many sizes, of which there must not be more than the limit has room for.
TEST(PinnedResults, ManySizes_StayWithinTheLimit) {
  const uint64_t seed = TestSeed(66);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  cuda::HostDevice device;
  cuda::PinnedArena arena(device, 1'000'000, 1'000);
  const auto num_pinned = device.PinnedCounter();
  Rng rng(seed);
  std::vector<std::pair<std::shared_ptr<std::byte>, size_t>> taken;
  size_t in_use = 0;
  int num_refused = 0;
  for (int i = 0; i < 2'000; ++i) {
    const size_t bytes = 1 + rng.Below(300'000);
    auto memory = arena.Take(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    if (*memory != nullptr) {
      std::fill_n(memory->get(), bytes, static_cast<std::byte>(i));  // a sanitizer sees what is too short
      in_use += bytes;
      taken.emplace_back(*std::move(memory), bytes);
    } else if (bytes >= 1'000) {
      ++num_refused;
    }
    EXPECT_LE(in_use, 1'000'000u);
    while (!taken.empty() && rng.OneIn(2)) {
      std::swap(taken[rng.Below(taken.size())], taken.back());
      in_use -= taken.back().second;
      taken.pop_back();
    }
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_LT(num_refused, 1'000);
  for (const auto& [memory, bytes] : taken) {
    EXPECT_EQ(std::count(memory.get(), memory.get() + bytes, memory.get()[0]), static_cast<std::ptrdiff_t>(bytes));
  }
  arena.Trim();
  EXPECT_EQ(num_pinned(), taken.size());
}

TEST(PinnedResults, NoMoreBlocksAreFreedThanMustBe_AndLargeOnesAreLeftToLargeResults) {
  cuda::HostDevice device;
  cuda::PinnedArena arena(device, 10'000, 1'000);
  const auto num_pinned = device.PinnedCounter();
  const auto take = [&](size_t bytes) { return *arena.Take(bytes); };
  { const std::vector<std::shared_ptr<std::byte>> three = {take(3'000), take(3'000), take(3'000)}; }
  EXPECT_EQ(num_pinned(), 3u);
  const auto small = take(1'000);
  EXPECT_EQ(num_pinned(), 4u);
  const auto large = take(5'000);  // in the place of two
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(num_pinned(), 3u);
  EXPECT_NE(take(2'500), nullptr);
  EXPECT_EQ(num_pinned(), 3u);
}

TEST(PinnedResults, LetGoOnOtherThreads_DuringRounds) {
  const uint64_t seed = TestSeed(67);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Bench bench(400'000);
  std::vector<std::thread> readers;
  for (uint64_t round = 0; round < 16; ++round) {
    readers.emplace_back([seed, round, result = bench.Merge(Submissions(seed + round % 4))] {
      EXPECT_EQ(Difference(result, seed + round % 4), "");
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Difference(bench.Merge(Submissions(seed)), seed), "");
}

}  // namespace
}  // namespace sparseagg::testing
