#include "python/engine/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace sparseagg::python {
namespace {

using testing::HasSubstr;

TensorSpec Spec(uint64_t dimension) {
  TensorSpec spec;
  spec.name = "v";
  spec.dimension = dimension;
  return spec;
}

// The copies of keys that are overwritten as soon as they are copied.
template <typename To, typename From>
std::vector<uint64_t> Copied(uint64_t dimension, std::vector<From> keys) {
  const auto columns = CopyKeys(Spec(dimension), absl::MakeConstSpan(keys), nullptr);
  EXPECT_TRUE(columns.ok()) << columns.status();
  std::fill(keys.begin(), keys.end(), From{99});
  const auto& span = std::get<absl::Span<const To>>(columns->keys);
  return {span.begin(), span.end()};
}

TEST(CopyKeysTest, AnyWidth_IsCopied) {
  const std::vector<uint64_t> expected = {7, 1};
  EXPECT_EQ((Copied<uint32_t, uint32_t>(10, {7, 1})), expected);
  EXPECT_EQ((Copied<uint32_t, int32_t>(10, {7, 1})), expected);
  EXPECT_EQ((Copied<uint32_t, int64_t>(10, {7, 1})), expected);
  EXPECT_EQ((Copied<uint32_t, uint64_t>(10, {7, 1})), expected);
  EXPECT_EQ((Copied<uint64_t, uint32_t>(0, {7, 1})), expected);
  EXPECT_EQ((Copied<uint64_t, int32_t>(0, {7, 1})), expected);
  EXPECT_EQ((Copied<uint64_t, int64_t>(0, {7, 1})), expected);
  EXPECT_EQ((Copied<uint64_t, uint64_t>(0, {7, 1})), expected);
}

TEST(CopyKeysTest, LargestKeys_Fit) {
  const uint64_t narrow = (uint64_t{1} << 32) - 1;
  EXPECT_EQ((Copied<uint32_t, uint64_t>(uint64_t{1} << 32, {narrow, 0})), (std::vector<uint64_t>{narrow, 0}));
  EXPECT_EQ((Copied<uint32_t, int64_t>(uint64_t{1} << 32, {int64_t{1} << 31})), (std::vector<uint64_t>{1u << 31}));
  const uint64_t wide = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ((Copied<uint64_t, uint64_t>(0, {wide})), (std::vector<uint64_t>{wide}));
}

template <typename From>
std::string Refusal(uint64_t dimension, const std::vector<From>& keys) {
  const auto columns = CopyKeys(Spec(dimension), absl::MakeConstSpan(keys), nullptr);
  EXPECT_EQ(columns.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(columns.status().message());
}

TEST(CopyKeysTest, KeyThatDoesNotFit_IsNamedWithItsPlace) {
  const std::string narrow = "tensor 'v': key -3 at position 2 is not in [0, 10)";
  EXPECT_EQ(Refusal(10, std::vector<int32_t>{1, 2, -3, -4}), narrow);
  EXPECT_EQ(Refusal(10, std::vector<int64_t>{1, 2, -3, -4}), narrow);
  EXPECT_THAT(Refusal(0, std::vector<int32_t>{1, 2, -3}), HasSubstr("key -3 at position 2"));
  EXPECT_THAT(Refusal(0, std::vector<int64_t>{1, 2, -3}), HasSubstr("[0, 18446744073709551616)"));
  EXPECT_THAT(Refusal(10, std::vector<uint64_t>{1, uint64_t{1} << 32}), HasSubstr("key 4294967296 at position 1"));
  EXPECT_THAT(Refusal(10, std::vector<int64_t>{int64_t{1} << 32}), HasSubstr("key 4294967296 at position 0"));
}

TEST(CopyKeysTest, Copy_KeepsTheOwner) {
  auto owner = std::make_shared<int>(0);
  const std::vector<int64_t> keys = {3};
  const auto columns = CopyKeys(Spec(10), absl::MakeConstSpan(keys), owner);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(owner.use_count(), 2);
}

}  // namespace
}  // namespace sparseagg::python
