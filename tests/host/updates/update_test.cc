// ValidatedUpdate::Create over borrowed columns, and weights.
#include "host/updates/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparseagg {
namespace {

using ::testing::HasSubstr;

TensorSpec TensorOf(uint64_t num_rows = 100, uint32_t row_width = 1) {
  TensorSpec spec;
  spec.name = "embedding";
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  return spec;
}

// Borrowed columns, alive through their owner.
template <typename Key>
UpdateColumns Columns(std::vector<Key> keys, std::vector<float> values) {
  struct Storage {
    std::vector<Key> keys;
    std::vector<float> values;
  };
  auto storage = std::make_shared<Storage>(Storage{std::move(keys), std::move(values)});
  UpdateColumns columns;
  columns.keys = absl::MakeConstSpan(storage->keys);
  columns.values = storage->values.empty() ? nullptr : reinterpret_cast<const std::byte*>(storage->values.data());
  columns.owner = storage;
  return columns;
}

UpdateColumns RunOf(uint64_t first, uint64_t count) {
  UpdateColumns columns = Columns<uint32_t>({}, std::vector<float>(count, 1.0f));
  columns.keys = KeyRun{first, count};
  return columns;
}

TEST(ValidatedUpdate, Create_GoodColumns_BorrowsThem) {
  const UpdateColumns columns = Columns<uint32_t>({3, 1, 99}, {1, 2, 3});
  const auto update = ValidatedUpdate::Create(TensorOf(), columns, 2.5);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(update->num_keys(), 3u);
  EXPECT_EQ(update->values(), columns.values) << "not copied";
  EXPECT_EQ(std::get<absl::Span<const uint32_t>>(update->keys()).data(),
            std::get<absl::Span<const uint32_t>>(columns.keys).data());
  EXPECT_EQ(update->owner(), columns.owner);
  EXPECT_EQ(update->weight(), 1.0) << "under kUniform the weight sent does not matter";
}

TEST(ValidatedUpdate, CreateWithCopiedKeys_KeysChangedLater_StayAsTheyWere) {
  std::vector<int64_t> keys = {3, 7, 99};
  auto values = std::make_shared<std::vector<float>>(3, 1.0f);
  const auto* const bytes = reinterpret_cast<const std::byte*>(values->data());
  auto update = ValidatedUpdate::CreateWithCopiedKeys(TensorOf(), absl::Span<const int64_t>(keys), bytes, values, 2.5);
  ASSERT_TRUE(update.ok()) << update.status();
  keys = {-1, -1, -1};
  const auto& copied = std::get<absl::Span<const uint32_t>>(update->keys());
  EXPECT_EQ(std::vector<uint32_t>(copied.begin(), copied.end()), (std::vector<uint32_t>{3, 7, 99}));
  EXPECT_TRUE(update->sorted() && update->unique());
  EXPECT_EQ(update->values(), bytes) << "not copied";
  EXPECT_GT(values.use_count(), 1) << "owned";
  update = absl::UnknownError("");
  EXPECT_EQ(values.use_count(), 1) << "given back";
}

TEST(ValidatedUpdate, CreateWithCopiedKeys_BadUpdates_AreRefused) {
  const std::vector<float> values = {1.0f, std::numeric_limits<float>::infinity()};
  const auto refusal = [&](const TensorSpec& spec, const InputKeys& keys, double weight) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return std::string(ValidatedUpdate::CreateWithCopiedKeys(spec, keys, bytes, nullptr, weight).status().message());
  };
  const std::vector<int64_t> keys = {1, 2};
  const absl::Span<const int64_t> span(keys);
  EXPECT_THAT(refusal(TensorOf(), span, 1), HasSubstr("key 2, position 1: value inf"));
  EXPECT_THAT(refusal(TensorOf(), span, -1), HasSubstr("weight -1"));
  EXPECT_THAT(refusal(TensorOf(2), span, 1), HasSubstr("position 1: key 2 is not below num_rows 2"));
  EXPECT_THAT(refusal(TensorOf(2), KeyRun{0, 3}, 1), HasSubstr("key 2 is not below num_rows 2"));
  TensorSpec dense = TensorOf(2);
  dense.layout = Layout::kDense;
  EXPECT_THAT(refusal(dense, span.subspan(0, 1), 1), HasSubstr("layout dense needs all 2 rows in order"));
}

TEST(ValidatedUpdate, Create_RunBeyondNumRows_IsRefused) {
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(), RunOf(91, 10), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(), RunOf(100, 1), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(), RunOf(~uint64_t{0}, 2), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
  // num_rows 0 ends at 2^64: a run up to it is fine, one past it is not.
  EXPECT_TRUE(ValidatedUpdate::Create(TensorOf(0), RunOf(~uint64_t{0} - 9, 10), 1.0).ok());
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(0), RunOf(~uint64_t{0} - 8, 10), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ValidatedUpdate, Create_Nonfinite_NamesTensorKeyPositionAndValue) {
  const auto update = ValidatedUpdate::Create(
      TensorOf(100, 2), Columns<uint32_t>({1, 23}, {1, 2, 3, std::numeric_limits<float>::infinity()}), 1.0);
  EXPECT_EQ(update.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(update.status().message()),
              HasSubstr("tensor 'embedding', key 23, position 1, column 1: value inf is not finite"));
}

TEST(ValidatedUpdate, Create_KeysOfTheWrongWidth_AreRefused) {
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(100), Columns<uint64_t>({1}, {1}), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidatedUpdate::Create(TensorOf(0), Columns<uint32_t>({1}, {1}), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ValidatedUpdate::Create(TensorOf(uint64_t{1} << 32), Columns<uint32_t>({~0u}, {1}), 1.0).ok());
  EXPECT_TRUE(ValidatedUpdate::Create(TensorOf(0), Columns<uint64_t>({~uint64_t{0}}, {1}), 1.0).ok());
}

TEST(ValidatedUpdate, Create_ValuesForUnion_AreCheckedAndDropped) {
  TensorSpec spec = TensorOf();
  spec.aggregation.op = Op::kUnion;
  const auto update = ValidatedUpdate::Create(spec, Columns<uint32_t>({1, 1}, {2, 3}), 1.0);
  ASSERT_TRUE(update.ok());
  EXPECT_EQ(update->num_keys(), 2u);
  EXPECT_EQ(update->values(), nullptr);
  EXPECT_EQ(ValidatedUpdate::Create(spec, Columns<uint32_t>({1}, {NAN}), 1.0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ValidatedUpdate, Create_DenseTensorWithAListOfKeys_SaysWhatItTakes) {
  TensorSpec spec = TensorOf(4);
  spec.layout = Layout::kDense;
  EXPECT_EQ(ValidatedUpdate::Create(spec, Columns<uint32_t>({0, 1, 2, 3}, {1, 2, 3, 4}), 1.0).status().message(),
            "tensor 'embedding': layout dense needs all 4 rows in order, as a run of keys, not a list of 4");
  EXPECT_EQ(ValidatedUpdate::Create(spec, RunOf(0, 3), 1.0).status().message(),
            "tensor 'embedding': layout dense needs all 4 rows, not 3");
}

}  // namespace
}  // namespace sparseagg
