// UpdateBuilder with bytes in several spans: the same update as from one span.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "host/base/byte_spans.h"
#include "host/updates/update_builder.h"
#include "host/wire/packed_values.h"
#include "tests/host/updates/slices.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Cuts `bytes` after every `size`.
std::vector<absl::string_view> Cut(absl::string_view bytes, size_t size) {
  std::vector<absl::string_view> spans;
  for (size_t begin = 0; begin < bytes.size(); begin += size) spans.push_back(bytes.substr(begin, size));
  return spans;
}

TEST(UpdateBuilderByteSpans, Append_SeveralSpans_GiveTheSameUpdate) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const std::vector<Slice> slices = {U32({7, 3, 9, 9, 1}, values), U64({7, 3, 9, 9, 1}, values),
                                     Delta({1, 3, 7, 9, 500}, values), Implicit(20, 5, values)};
  for (const uint64_t num_rows : {uint64_t{1000}, uint64_t{1} << 40}) {
    for (const Op op : {Op::kSum, Op::kUnion}) {
      TensorSpec spec = Spec(num_rows);
      spec.aggregation.op = op;
      for (size_t s = 0; s < slices.size(); ++s) {
        for (size_t size = 1; size < 12; ++size) {
          SCOPED_TRACE(::testing::Message() << "num_rows " << num_rows << ", slice " << s << ", spans of " << size);
          const std::vector<absl::string_view> keys = Cut(slices[s].keys, size);
          const std::vector<absl::string_view> values_in_spans = Cut(slices[s].values, size);
          SliceView view = slices[s].view();
          view.keys = ByteSpans(keys);
          view.values = ByteSpans(values_in_spans);
          UpdateBuilder whole(&spec);
          UpdateBuilder spans(&spec);
          // After something, so that they are not taken to the front.
          ASSERT_TRUE(Append(whole, spec, 0, Implicit(4, 2, {8, 9}).view()).ok());
          ASSERT_TRUE(Append(spans, spec, 0, Implicit(4, 2, {8, 9}).view()).ok());
          ASSERT_TRUE(Append(whole, spec, 1, slices[s].view()).ok());
          ASSERT_TRUE(Append(spans, spec, 1, view).ok());
          EXPECT_EQ(whole.HashContent(), spans.HashContent());
          const auto expected = std::move(whole).Finish(1.0);
          const auto update = std::move(spans).Finish(1.0);
          EXPECT_EQ(KeysOf(*update), KeysOf(*expected));
          if (op == Op::kSum) {
            EXPECT_EQ(FloatsOf(*update), FloatsOf(*expected));
          }
          EXPECT_EQ(update->sorted(), expected->sorted());
          EXPECT_EQ(update->unique(), expected->unique());
        }
      }
    }
  }
}

// Long slices are gone through in batches, and copied past the caches.
TEST(UpdateBuilderByteSpans, Append_LongSlices_AreKeptUnchanged) {
  constexpr uint64_t kCount = 100'000;
  std::vector<uint64_t> keys(kCount);
  std::vector<double> values(kCount);
  std::mt19937 rng(7);
  for (uint64_t i = 0; i < kCount; ++i) {
    keys[i] = rng() % 1'000'000;
    values[i] = static_cast<double>(rng() % 1000);
  }
  for (const uint64_t num_rows : {uint64_t{1'000'000}, uint64_t{1} << 40}) {
    const TensorSpec spec = Spec(num_rows);
    for (const Slice& slice : {U32(keys, values), U64(keys, values)}) {
      for (const size_t size : {size_t{4099}, size_t{8192}, size_t{70'001}, size_t{1} << 20}) {
        SCOPED_TRACE(::testing::Message() << "num_rows " << num_rows << ", spans of " << size);
        const std::vector<absl::string_view> key_spans = Cut(slice.keys, size);
        const std::vector<absl::string_view> value_spans = Cut(slice.values, size);
        SliceView view = slice.view();
        view.keys = ByteSpans(key_spans);
        view.values = ByteSpans(value_spans);
        UpdateBuilder builder(&spec);
        ASSERT_TRUE(Append(builder, spec, 0, U32({3}, {5}).view()).ok());  // so that places are aligned to no vector
        ASSERT_TRUE(Append(builder, spec, 1, view).ok());
        const auto update = std::move(builder).Finish(1.0);
        std::vector<uint64_t> expected_keys = {3};
        std::vector<double> expected_values = {5};
        expected_keys.insert(expected_keys.end(), keys.begin(), keys.end());
        expected_values.insert(expected_values.end(), values.begin(), values.end());
        EXPECT_EQ(KeysOf(*update), expected_keys);
        EXPECT_EQ(FloatsOf(*update), expected_values);
        EXPECT_FALSE(update->sorted());
      }
    }
  }
}

TEST(UpdateBuilderByteSpans, Append_LongNarrowValues_AreWidenedWhereverTheyAreCut) {
  constexpr uint64_t kCount = 50'000;
  Column<float> values(kCount);
  for (uint64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 2048);  // exact in all
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  for (const auto packing :
       {wire::ValuePacking::kFloat16, wire::ValuePacking::kBFloat16, wire::ValuePacking::kInt8Scaled}) {
    const std::string packed = *wire::PackValues(packing, DType::kFloat32, bytes, kCount);
    const TensorSpec spec = Spec(kCount);
    SliceView view;
    view.key_type = SliceView::Keys::kImplicit;
    view.num_keys = kCount;
    view.value_packing = packing;
    view.values = packed;
    UpdateBuilder whole(&spec);
    ASSERT_TRUE(Append(whole, spec, 0, view).ok());
    const std::vector<absl::string_view> cut = Cut(packed, 4099);
    view.values = ByteSpans(cut);
    UpdateBuilder spans(&spec);
    ASSERT_TRUE(Append(spans, spec, 0, view).ok());
    EXPECT_EQ(spans.HashContent(), whole.HashContent());
    const std::vector<double> floats = FloatsOf(*std::move(spans).Finish(1.0));
    EXPECT_EQ(floats, FloatsOf(*std::move(whole).Finish(1.0)));
    if (packing == wire::ValuePacking::kFloat16) {
      EXPECT_EQ(floats, std::vector<double>(values.begin(), values.end()));
    }
  }
}

TEST(UpdateBuilderByteSpans, Append_LongSlices_NameTheBadPosition) {
  constexpr uint64_t kCount = 100'000;
  constexpr uint64_t kBad = 98'765;
  std::vector<uint64_t> keys(kCount);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<double> values(kCount, 1.0);
  std::vector<uint64_t> bad_keys = keys;
  std::vector<double> bad_values = values;
  bad_keys[kBad] = 1'000'000;
  bad_values[kBad] = std::nan("");
  const TensorSpec spec = Spec(1'000'000);
  for (const Slice& slice : {U32(bad_keys, values), U64(bad_keys, values), U32(keys, bad_values)}) {
    const std::vector<absl::string_view> key_spans = Cut(slice.keys, 10'001);
    const std::vector<absl::string_view> value_spans = Cut(slice.values, 10'001);
    SliceView view = slice.view();
    view.keys = ByteSpans(key_spans);
    view.values = ByteSpans(value_spans);
    UpdateBuilder builder(&spec);
    EXPECT_THAT(std::string(Append(builder, spec, 17, view).message()),
                AllOf(HasSubstr("chunk 17, "), HasSubstr("position 98765:")));
  }
}

}  // namespace
}  // namespace sparseagg::testing
