// The way of keys and values from the wire to the device: how often they are copied on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "cuda/host_device.h"
#include "host/aggregation.h"
#include "host/updates/slice.h"
#include "host/updates/update_builder.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

TensorSpec Sum(uint64_t dimension) {
  TensorSpec spec;
  spec.name = "t";
  spec.dimension = dimension;
  return spec;
}

std::vector<RawSubmission> Submissions(const TensorSpec& spec, int num_clients, size_t num_tuples, KeyOrder order) {
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(12));
  for (int i = 0; i < num_clients; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.dimension, num_tuples, KeyStyle::kUniform, order);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", i), 1.0, {std::move(raw)}});
  }
  return submissions;
}

// The builder's columns are the one copy; the device reads them where they are, but for parts of pages at their ends.
TEST(Feeding, FromTheWireToTheDevice_OneCopy) {
  const TensorSpec spec = Sum(10'000'000);
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  const auto aggregation = *Aggregation::Create(engine, {spec});
  uint64_t wire_bytes = 0;
  for (const RawSubmission& submission : Submissions(spec, 8, 200'000, KeyOrder::kSortedUnique)) {
    auto updates = BuildUpdates({spec}, submission);
    ASSERT_TRUE(updates.ok()) << updates.status();
    wire_bytes += updates->front().num_keys() * 8;
    auto prepared = aggregation->Prepare(*std::move(updates));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_TRUE(aggregation->Add(submission.client_id, *std::move(prepared)).ok());
  }
  // Host memory: the one copy.
  EXPECT_LE(aggregation->memory_bytes(), wire_bytes * 101 / 100);
  ASSERT_TRUE(std::move(*aggregation).Finish().ok());
  const cuda::DeviceUse use = engine.use();
  EXPECT_EQ(use.direct_bytes + use.staged_bytes, wire_bytes) << "what was sent was not sent once";
  EXPECT_LE(use.staged_bytes, wire_bytes / 50) << "copied once more, into slots";
  EXPECT_EQ(use.num_fallbacks, 0u);
}

// Pages, their edges, slabs and batches, in any order of the device's work.
TEST(Feeding, PartlyPinnedArrays_EqualTheReference) {
  for (uint64_t seed = TestSeed(90), end = seed + 8; seed < end; ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
    const TensorSpec spec = Sum(5'000);
    const auto submissions = Submissions(spec, 6, 3'000, seed % 2 == 0 ? KeyOrder::kSortedUnique : KeyOrder::kShuffled);
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    options.tuning.slab_bytes = 20'000;
    options.tuning.min_copy_bytes = seed % 4 < 2 ? 3'000 : 1'000'000;
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = seed}),
                              options);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
    EXPECT_GT(engine.use().direct_bytes, 0u);
    EXPECT_GT(engine.use().staged_bytes, 0u);
  }
}

TEST(Feeding, SmallRounds_OnTheCpuIfAskedFor) {
  const TensorSpec spec = Sum(1'000);
  cuda::DeviceEngineOptions options;
  options.tuning.min_merge_values = 200;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  for (const size_t num_tuples : {40, 90}) {  // of three clients each
    const auto submissions = Submissions(spec, 3, num_tuples, KeyOrder::kSortedUnique);
    size_t values = 0;
    for (const RawSubmission& submission : submissions) values += submission.tensors[0].keys.size();
    const uint64_t before = engine.use().num_done;
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
    EXPECT_EQ(engine.use().num_done > before, values >= 200) << values;
    EXPECT_EQ(engine.use().num_fallbacks, 0u);
  }
}

TEST(Feeding, EnoughIsPinned_ThroughSlots) {
  const TensorSpec spec = Sum(100'000);
  const auto submissions = Submissions(spec, 4, 40'000, KeyOrder::kSortedUnique);
  cuda::DeviceEngineOptions options;
  options.tuning.max_pinned_bytes = 500'000;  // of about a million
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  EXPECT_LE(engine.use().direct_bytes, 500'000u);
  EXPECT_GT(engine.use().direct_bytes, 0u);
}

}  // namespace
}  // namespace sparseagg::testing
