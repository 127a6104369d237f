// Keys that their owner changed after the update was validated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/merge/batch.h"
#include "cuda/merge/merger.h"
#include "tests/support/host_device.h"

namespace sparseagg::testing {
namespace {

constexpr uint32_t kNumKeys = 4'000;

// Merges by tiles an update whose keys become `changed` once it is validated.
absl::Status MergeChanged(const std::vector<uint32_t>& changed) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 3 * kNumKeys;
  std::vector<uint32_t> keys(kNumKeys);
  std::iota(keys.begin(), keys.end(), 100u);
  const std::vector<float> values(kNumKeys, 1.0f);
  UpdateColumns columns;
  columns.keys = absl::MakeConstSpan(keys);
  columns.values = reinterpret_cast<const std::byte*>(values.data());
  const ValidatedUpdate update = *ValidatedUpdate::Create(spec, columns, 1.0);
  std::copy(changed.begin(), changed.end(), keys.begin());

  cuda::Tuning tuning;
  tuning.min_tile_tuples = tuning.min_tile_run = 0;
  cuda::HostDevice device;
  cuda::Session session(device, size_t{1} << 30, tuning, 1);
  const cuda::TensorShape shape(spec);
  cuda::Batch batch = *SendBatch(session, shape, {{&update, 0, kNumKeys}});
  return cuda::Merger(session, shape, 0)
      .MergeBatch(cuda::DeviceRows(), batch, [] { return absl::OkStatus(); })
      .status();
}

TEST(MalformedKeys, KeysAsTheyWere_NoError) {
  std::vector<uint32_t> keys(kNumKeys);
  std::iota(keys.begin(), keys.end(), 100u);
  EXPECT_TRUE(MergeChanged(keys).ok());
}

TEST(MalformedKeys, OneKeyMany_AnErrorAndNoEndlessKernel) {
  EXPECT_EQ(MergeChanged(std::vector<uint32_t>(kNumKeys, 7)).code(), absl::StatusCode::kInternal);
}

TEST(MalformedKeys, AKeyOutsideItsTile_AnError) {
  for (const uint32_t key : {3 * kNumKeys - 1, 7'000'000u, UINT32_MAX}) {
    std::vector<uint32_t> keys(kNumKeys);
    std::iota(keys.begin(), keys.end(), 100u);
    keys[10] = key;
    EXPECT_EQ(MergeChanged(keys).code(), absl::StatusCode::kInternal) << key;
  }
}

TEST(MalformedKeys, Descending_AnError) {
  std::vector<uint32_t> keys(kNumKeys);
  std::iota(keys.rbegin(), keys.rend(), 100u);
  EXPECT_EQ(MergeChanged(keys).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace sparseagg::testing
