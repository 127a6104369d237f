// Bounds on submissions, by the numbers. Random specs: tests/python/local/test_operators.py.
#include "host/clip/clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/driver.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;

TensorSpec Tensor(const char* name, DType dtype = DType::kFloat32) {
  TensorSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.num_rows = 100;
  return spec;
}

std::vector<ValidatedUpdate> Updates(const std::vector<TensorSpec>& specs, std::vector<RawTensor> tensors) {
  auto updates = BuildUpdates(specs, {"a", 1.0, std::move(tensors)});
  EXPECT_TRUE(updates.ok()) << updates.status();
  return *std::move(updates);
}

TEST(ApplyClips, MaxKeysWithEqualRows_KeepsTheLowerKeys) {
  TensorSpec spec = Tensor("t");
  spec.clip.max_keys = 3;
  auto updates = Updates({spec}, {{{9, 4, 7, 2, 5}, Pack(DType::kFloat32, {-2, 2, 3, 2, 2})}});
  const auto outcome = ApplyClips({spec}, updates);
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->max_keys);
  EXPECT_THAT(std::get<absl::Span<const uint32_t>>(updates[0].keys()), ElementsAre(2, 4, 7));
}

TEST(ApplyClips, WithinBounds_KeepsTheMemoryOfSortedUpdates) {
  TensorSpec spec = Tensor("t");
  spec.clip = {.l2 = 10.0, .shares_l2 = true, .linf = 5.0, .max_keys = 2};
  auto updates = Updates({spec}, {{{3, 4}, Pack(DType::kFloat32, {5, 5})}});
  const std::byte* const values = updates[0].values();
  ASSERT_TRUE(ApplyClips({spec}, updates).ok());
  EXPECT_EQ(updates[0].values(), values);
}

TEST(ApplyClips, BeyondBounds_UnderReject_NamesNormAndBound) {
  TensorSpec spec = Tensor("t");
  spec.row_width = 2;
  const auto refusal = [&](TensorClip clip) {
    spec.clip = clip;
    spec.clip.on_clip = spec.clip.on_l2 = ClipPolicy::kReject;
    auto updates = Updates({spec}, {{{8, 5}, Pack(DType::kFloat32, {0, 0, 0, -13})}});
    return ApplyClips({spec}, updates).status();
  };
  EXPECT_EQ(refusal({.l2 = 12.5, .shares_l2 = true}),
            absl::InvalidArgumentError("the L2 norm 13 of the submission is beyond clip.l2 12.5"));
  EXPECT_EQ(refusal({.l2 = 12.5}),
            absl::InvalidArgumentError("tensor 't': the L2 norm 13 of the submission is beyond clip.l2 12.5"));
  EXPECT_EQ(refusal({.l2 = std::nextafter(13.0, 0.0), .shares_l2 = true}),
            absl::InvalidArgumentError("the L2 norm 13 of the submission is beyond clip.l2 12.999999999999998"));
  EXPECT_EQ(refusal({.linf = 12.5}),
            absl::InvalidArgumentError("tensor 't', key 5, column 1: value -13 is beyond clip.linf 12.5"));
  EXPECT_EQ(refusal({.max_keys = 1}), absl::ResourceExhaustedError("tensor 't': 2 keys are beyond clip.max_keys 1"));
  EXPECT_TRUE(refusal({.l2 = 13.0, .linf = 13.0, .max_keys = 2}).ok()) << "the bounds themselves are allowed";
}

TEST(ApplyClips, NumbersBeyondTheirType_AreRefused) {
  TensorSpec spec = Tensor("t", DType::kFloat64);
  spec.clip = {.l2 = 1.0, .shares_l2 = true};
  auto updates = Updates({spec}, {{{5}, Pack(DType::kFloat64, {1e200})}});
  EXPECT_EQ(ApplyClips({spec}, updates).status(),
            absl::InvalidArgumentError("the squared L2 norm of the submission is beyond float64"));
  spec.clip.linf = 1e100;
  ASSERT_TRUE(ApplyClips({spec}, updates).ok()) << "clamped, it has a norm";
}

TEST(ApplyClips, ValuesInMemory_AreCheckedWithTheirNorm) {
  TensorSpec spec = Tensor("t");
  spec.clip = {.l2 = 1.0, .shares_l2 = true};
  const std::vector<uint32_t> keys = {3, 5};
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> values = {1.0f, bad};
    const UpdateColumns columns = {absl::MakeConstSpan(keys), reinterpret_cast<const std::byte*>(values.data()),
                                   nullptr};
    const auto update = ValidatedUpdate::Create(spec, columns, 1.0);
    ASSERT_TRUE(update.ok()) << update.status();
    std::vector<ValidatedUpdate> updates = {*update};
    const absl::Status status = ApplyClips({spec}, updates).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("key 5"));
  }
}

}  // namespace
}  // namespace sparseagg::testing
