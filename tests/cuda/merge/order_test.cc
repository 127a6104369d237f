// Order statistics that a device computes. The device is the host's memory here; the CPU engine has the same bits.
#include "cuda/kernels/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "tests/host/engine/contract.h"
#include "tests/support/engines.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<cuda::DeviceEngine> MakeEngine(uint64_t seed, size_t budget_bytes, size_t slab_bytes = 0) {
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  options.tuning.slab_bytes = slab_bytes;
  options.tuning.min_slab_run = 1.0;
  options.memory_budget_bytes = budget_bytes;
  options.cpu.num_threads = 1;
  return std::make_unique<cuda::DeviceEngine>(
      std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = seed}), options);
}

TensorSpec RandomSpec(Rng& rng) {
  const DType dtype = rng.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64});
  TensorSpec spec = MakeSpec(dtype, rng.Pick({Op::kMedian, Op::kTrimmedMean, Op::kQuantile}),
                             rng.Pick<uint64_t>({60, 0}), rng.Pick({1, 1, 3, 7}));
  AggregationSpec& a = spec.aggregation;
  a.order.absent = rng.Pick({AbsentPolicy::kSkip, AbsentPolicy::kZero});
  if (a.op == Op::kQuantile) a.order.quantile = rng.Pick({0.0, 0.1, 0.5, 0.9, 1.0});
  if (a.op == Op::kTrimmedMean) a.order.trim_fraction = rng.Pick({0.0, 0.1, 0.3, 0.49, 0.49999999999999994});
  a.min_contributors = rng.Pick({1u, 1u, 3u});
  a.return_counts = rng.Coin();
  a.prune_zeros = rng.OneIn(4);
  a.on_nonfinite = rng.Coin() ? NonfinitePolicy::kPropagate : NonfinitePolicy::kReject;
  return spec;
}

std::vector<RawSubmission> RandomSubmissions(const TensorSpec& spec, size_t num_clients, Rng& rng) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool is_wild = spec.aggregation.on_nonfinite == NonfinitePolicy::kPropagate;
  std::vector<RawSubmission> submissions;
  for (size_t k = 0; k < num_clients; ++k) {
    std::vector<uint64_t> keys;
    std::vector<double> values;
    for (uint64_t key = 0; key < 50; ++key) {
      if (rng.OneIn(3)) continue;
      keys.push_back(key);
      for (uint32_t c = 0; c < spec.row_width; ++c) {
        values.push_back(static_cast<double>(rng.Between(-3, 3)) / 3.0);
        if (rng.OneIn(9)) values.back() = -0.0;
        if (is_wild && rng.OneIn(90)) values.back() = rng.Pick({infinity, -infinity, infinity - infinity});
      }
    }
    submissions.push_back(Client(spec, absl::StrCat("client ", rng.Below(1000), "-", k), keys, values));
  }
  return submissions;
}

std::string DifferenceFromCpu(Engine& engine, const TensorSpec& spec, const std::vector<RawSubmission>& submissions,
                              uint64_t seed) {
  DriveOptions options;
  options.shuffle_seed = seed;
  options.num_aggregations = 1 + static_cast<int>(seed % 3);
  const Driven expected = Drive(*CreateCpuEngine({1}), {spec}, submissions, {});
  const Driven found = Drive(engine, {spec}, submissions, options);
  if (!expected.results.ok() || !found.results.ok()) {
    return absl::StrCat(expected.results.status().message(), " / ", found.results.status().message());
  }
  return Diff((*found.results)[0], (*expected.results)[0]);
}

TEST(DeviceOrderStatistics, RandomRounds_HaveTheBitsOfTheCpu) {
  uint64_t num_done = 0;
  const uint64_t first = TestSeed(4100);
  for (uint64_t seed = first; seed < first + TestCases(300); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    Rng rng(seed);
    const TensorSpec spec = RandomSpec(rng);
    const std::vector<RawSubmission> submissions = RandomSubmissions(spec, rng.Pick({1, 2, 7, 8, 31, 33, 64, 65}), rng);
    const auto engine = MakeEngine(seed, 100'000'000, rng.Pick<size_t>({0, 300, 3000}));
    ASSERT_EQ(DifferenceFromCpu(*engine, spec, submissions, seed), "");
    EXPECT_EQ(engine->use().num_fallbacks, 0u);
    num_done += engine->use().num_done;
  }
  EXPECT_GE(num_done, TestCases(300));  // else the CPU engine has been compared with itself
}

TEST(DeviceOrderStatistics, LittleMemory_HandsOver_AndChangesNoBit) {
  uint64_t num_fallbacks = 0;
  const uint64_t first = TestSeed(4200);
  for (uint64_t seed = first; seed < first + TestCases(100); ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1"));
    Rng rng(seed);
    const TensorSpec spec = RandomSpec(rng);
    const std::vector<RawSubmission> submissions = RandomSubmissions(spec, 40, rng);
    const auto engine = MakeEngine(seed, rng.Pick<size_t>({1000, 20'000, 100'000}));
    ASSERT_EQ(DifferenceFromCpu(*engine, spec, submissions, seed), "");
    num_fallbacks += engine->use().num_fallbacks;
  }
  EXPECT_GT(num_fallbacks, TestCases(100) / 4);
}

TEST(DeviceOrderStatistics, RepeatedKeysAndTooManyClients_AreForTheCpu) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMedian);
  const auto engine = MakeEngine(0, 100'000'000);
  EXPECT_EQ(DifferenceFromCpu(*engine, spec, {Client(spec, "a", {7, 7}, {1, 2}), Client(spec, "b", {7}, {9})}, 1), "");
  std::vector<RawSubmission> many;
  for (uint32_t k = 0; k <= cuda::kMaxOrderSources; ++k) {
    many.push_back(Client(spec, absl::StrCat(k), {7}, {static_cast<double>(k)}));
  }
  EXPECT_EQ(DifferenceFromCpu(*engine, spec, many, 0), "");
  EXPECT_EQ(engine->use().num_done, 0u);
  many.pop_back();
  EXPECT_EQ(DifferenceFromCpu(*engine, spec, many, 0), "");
  EXPECT_EQ(engine->use().num_done, 1u);
}

TEST(DeviceOrderStatistics, ResultOnTheDevice_OrTheReasonWhyNot) {
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kMedian);
  const auto engine = MakeEngine(0, 100'000'000);
  const auto finish = [&]() -> absl::StatusOr<std::vector<DeviceResult>> {
    const auto aggregation = *Aggregation::Create(*engine, {spec});
    for (const char* id : {"b", "a", "c"}) {
      EXPECT_TRUE(Submit(*aggregation, Client(spec, id, {7}, {id[0] - 'a' + 1.0})).ok());
    }
    return std::move(*aggregation).FinishOnDevice();
  };
  const auto found = finish();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)[0].num_keys, 1u);
  EXPECT_EQ(*static_cast<const float*>((*found)[0].d_values), 2.0f);
  spec.aggregation.weighting = Weighting::kByWeight;
  const auto refused = finish();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("order statistics of floats, with equal votes"));
}

}  // namespace
}  // namespace sparseagg::testing
