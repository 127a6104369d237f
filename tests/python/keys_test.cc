#include "python/engine/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

template <typename To, typename From>
std::vector<uint64_t> Converted(uint64_t dimension, const std::vector<From>& keys, bool& borrowed) {
  const auto columns = ToEngineKeys(Spec(dimension), absl::MakeConstSpan(keys), nullptr);
  EXPECT_TRUE(columns.ok()) << columns.status();
  const auto& span = std::get<absl::Span<const To>>(columns->keys);
  borrowed = static_cast<const void*>(span.data()) == keys.data();
  return {span.begin(), span.end()};
}

TEST(ToEngineKeysTest, SameWidth_IsBorrowed) {
  bool borrowed = false;
  EXPECT_EQ(Converted<uint32_t>(10, std::vector<uint32_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
  EXPECT_TRUE(borrowed);
  EXPECT_EQ(Converted<uint32_t>(10, std::vector<int32_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
  EXPECT_TRUE(borrowed);
  EXPECT_EQ(Converted<uint64_t>(0, std::vector<int64_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
  EXPECT_TRUE(borrowed);
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(Converted<uint64_t>(0, std::vector<uint64_t>{most}, borrowed), (std::vector<uint64_t>{most}));
  EXPECT_TRUE(borrowed);
}

TEST(ToEngineKeysTest, OtherWidth_IsCopied) {
  bool borrowed = true;
  const uint64_t largest = (uint64_t{1} << 32) - 1;
  EXPECT_EQ(Converted<uint32_t>(uint64_t{1} << 32, std::vector<uint64_t>{largest, 0}, borrowed),
            (std::vector<uint64_t>{largest, 0}));
  EXPECT_FALSE(borrowed);
  EXPECT_EQ(Converted<uint32_t>(10, std::vector<int64_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
  EXPECT_EQ(Converted<uint64_t>(0, std::vector<uint32_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
  EXPECT_EQ(Converted<uint64_t>(0, std::vector<int32_t>{7, 1}, borrowed), (std::vector<uint64_t>{7, 1}));
}

template <typename From>
std::string Refusal(uint64_t dimension, const std::vector<From>& keys) {
  const auto columns = ToEngineKeys(Spec(dimension), absl::MakeConstSpan(keys), nullptr);
  EXPECT_EQ(columns.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(columns.status().message());
}

TEST(ToEngineKeysTest, KeyThatDoesNotFit_IsNamedWithItsPlace) {
  const std::string narrow = "tensor 'v': key -3 at position 2 is not in [0, 10)";
  EXPECT_EQ(Refusal(10, std::vector<int32_t>{1, 2, -3, -4}), narrow);
  EXPECT_EQ(Refusal(10, std::vector<int64_t>{1, 2, -3, -4}), narrow);
  EXPECT_THAT(Refusal(0, std::vector<int32_t>{1, 2, -3}), HasSubstr("key -3 at position 2"));
  EXPECT_THAT(Refusal(0, std::vector<int64_t>{1, 2, -3}), HasSubstr("[0, 18446744073709551616)"));
  EXPECT_THAT(Refusal(10, std::vector<uint64_t>{1, uint64_t{1} << 32}), HasSubstr("key 4294967296 at position 1"));
  EXPECT_THAT(Refusal(10, std::vector<int64_t>{int64_t{1} << 32}), HasSubstr("key 4294967296 at position 0"));
}

TEST(ToEngineKeysTest, Copy_KeepsTheOwner) {
  auto owner = std::make_shared<int>(0);
  const std::vector<int64_t> keys = {3};
  const auto columns = ToEngineKeys(Spec(10), absl::MakeConstSpan(keys), owner);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(owner.use_count(), 2);
}

}  // namespace
}  // namespace sparseagg::python
