// Bounds on submissions, by the numbers. Random specs: tests/python/local/test_clip.py.
#include "host/clip/clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "host/aggregation.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/results.h"
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

std::vector<double> SumOf(const TensorSpec& spec, const ValidatedUpdate& update) {
  const auto engine = AvailableEngines().front().create();
  TensorSpec plain = spec;
  plain.clip = {};
  auto aggregation = Aggregation::Create(*engine, {plain});
  EXPECT_TRUE((*aggregation)->Add("a", *(*aggregation)->Prepare({update})).ok());
  return FloatsOf((*std::move(**aggregation).Finish())[0]);
}

TEST(ApplyClips, NormOfTheRound_IsOfAllTensorsTogether) {
  std::vector<TensorSpec> specs = {Tensor("a"), Tensor("i", DType::kInt32), Tensor("b", DType::kFloat64)};
  for (TensorSpec& spec : specs) {
    if (IsFloat(spec.dtype)) spec.clip = {.l2 = 2.5, .shares_l2 = true};
  }
  auto updates = Updates(
      specs,
      {{{7}, Pack(DType::kFloat32, {3})}, {{1}, Pack(DType::kInt32, {100})}, {{9}, Pack(DType::kFloat64, {-4})}});
  const auto outcome = ApplyClips(specs, updates);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->factor, 0.5);
  EXPECT_EQ(updates[0].factor(), 0.5);
  EXPECT_EQ(updates[1].factor(), 1.0);
  EXPECT_THAT(SumOf(specs[0], updates[0]), ElementsAre(1.5));
  EXPECT_THAT(SumOf(specs[2], updates[2]), ElementsAre(-2.0));
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

TEST(ApplyClips, RepeatedKeys_AreAddedUpBeforeTheirNorm) {
  TensorSpec spec = Tensor("t");
  spec.clip = {.l2 = 1.0, .shares_l2 = true, .linf = 5.0};
  auto updates = Updates({spec}, {{{4, 3, 4}, Pack(DType::kFloat32, {1000, 0.5, -1000})}});
  const auto outcome = ApplyClips({spec}, updates);
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(outcome->is_clipped());
  EXPECT_EQ(updates[0].num_keys(), 3) << "is not as it was sent";
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

TEST(ClipSummary, AddAndTakeOut_CountsEachBound) {
  ClipSummary summary;
  for (const double factor : {0.5, 0.99, 0.4999, 0x1p-15, 0x1p-16, 0x1p-1000}) summary.Add({.factor = factor});
  summary.Add({.linf = true, .max_keys = true});
  summary.Add({});
  EXPECT_EQ(summary.num_clipped, 7);
  EXPECT_EQ(summary.num_l2, 6);
  EXPECT_EQ(summary.num_linf, 1);
  EXPECT_EQ(summary.num_max_keys, 1);
  EXPECT_THAT(summary.factors, ElementsAre(2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2));
  summary.Add({.factor = 0.5}, -1);
  EXPECT_EQ(summary.num_clipped, 6);
  EXPECT_EQ(summary.factors[0], 1);
}

}  // namespace
}  // namespace sparseagg::testing
