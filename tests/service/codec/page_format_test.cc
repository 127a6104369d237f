// Pages of results as their reader wants them.
#include "service/codec/page_format.h"

#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

PageFormat Packed() { return {.implicit_keys = true, .delta_keys = true}; }

Result ResultOf(const std::vector<uint32_t>& keys, const std::vector<float>& values) {
  Result result;
  result.num_keys = keys.size();
  Column<uint32_t> column(keys.size());
  std::copy(keys.begin(), keys.end(), column.data());
  result.keys = std::move(column);
  result.values = Column<std::byte>(4 * values.size());
  if (!values.empty()) std::memcpy(result.values.data(), values.data(), 4 * values.size());
  return result;
}

v1::TensorSlice KeysOf(const std::vector<uint32_t>& keys, const PageFormat& format) {
  v1::TensorSlice slice;
  EncodePageKeys(ResultOf(keys, {}), {0, keys.size()}, format, &slice);
  return slice;
}

std::vector<uint32_t> Steps(uint32_t count, uint32_t step) {
  std::vector<uint32_t> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(i * step + 7);
  return keys;
}

TEST(PageFormat, Keys_TheSmallestOfThoseAllowed) {
  EXPECT_EQ(KeysOf(Steps(100, 1), Packed()).key_encoding(), v1::KEY_ENCODING_IMPLICIT);
  EXPECT_EQ(KeysOf(Steps(100, 1), Packed()).first_key(), 7);
  EXPECT_EQ(KeysOf(Steps(100, 1), Packed()).keys(), "");
  EXPECT_EQ(KeysOf(Steps(100, 3), Packed()).key_encoding(), v1::KEY_ENCODING_DELTA_BITPACKED);
  EXPECT_EQ(KeysOf({0, 1, 2, 5, 6, 7}, Packed()).key_encoding(), v1::KEY_ENCODING_DELTA_BITPACKED);
  EXPECT_EQ(KeysOf({0, 1, 2, 5, 6, 7}, Packed()).keys(), std::string("\x02\x80\0", 3));
  EXPECT_EQ(KeysOf({0, 1u << 31}, Packed()).key_encoding(), v1::KEY_ENCODING_U32);
  EXPECT_EQ(KeysOf({}, Packed()).key_encoding(), v1::KEY_ENCODING_U32);
  EXPECT_EQ(KeysOf(Steps(100, 3), {}).key_encoding(), v1::KEY_ENCODING_U32);
  EXPECT_EQ(KeysOf(Steps(100, 3), {}).first_key(), 0);
  EXPECT_EQ(KeysOf(Steps(100, 1), {.delta_keys = true}).key_encoding(), v1::KEY_ENCODING_DELTA_BITPACKED);
}

TEST(PageFormat, Values_TheirOwnTypeWhereTheNarrowerDoesNotHoldThem) {
  const auto encode = [](const std::vector<float>& values, wire::ValuePacking packing) {
    v1::TensorSlice slice;
    EncodePageValues(ResultOf(Steps(static_cast<uint32_t>(values.size()), 1), values), {0, values.size()},
                     {.values = packing}, &slice);
    return slice;
  };
  const v1::TensorSlice half = encode({1.5f, 2.0f}, wire::ValuePacking::kFloat16);
  EXPECT_EQ(half.value_encoding(), v1::VALUE_ENCODING_FLOAT16);
  EXPECT_EQ(half.values(), std::string("\x00\x3e\x00\x40", 4));
  const v1::TensorSlice large = encode({1.5f, 1e6f}, wire::ValuePacking::kFloat16);
  EXPECT_EQ(large.value_encoding(), v1::VALUE_ENCODING_FLOAT32);
  EXPECT_EQ(large.values(), service::Packed<float>({1.5f, 1e6f}));
  EXPECT_EQ(encode({1.5f}, wire::ValuePacking::kFloat32).value_encoding(), v1::VALUE_ENCODING_FLOAT32);
  EXPECT_EQ(encode({1.5f}, wire::ValuePacking::kInt8Scaled).value_encoding(), v1::VALUE_ENCODING_INT8_SCALED);
  EXPECT_EQ(encode({1.5f}, wire::ValuePacking::kOwn).value_encoding(), v1::VALUE_ENCODING_FLOAT32);
}

TEST(PageFormat, DecodePageFormat_OtherValueEncodings_AreRefused) {
  for (const int encoding :
       {v1::VALUE_ENCODING_FLOAT64 + 0, v1::VALUE_ENCODING_INT32 + 0, v1::VALUE_ENCODING_NONE + 0, 42}) {
    v1::ResultFormat wire;
    wire.set_value_encoding(static_cast<v1::ValueEncoding>(encoding));
    EXPECT_THAT(DecodePageFormat(wire),
                Fails(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("format.value_encoding ", encoding))));
  }
}

TEST(PageFormat, DecodePageFormat_UnknownKeyEncodings_AreIgnored) {
  v1::ResultFormat wire;
  wire.add_key_encodings(static_cast<v1::KeyEncoding>(42));
  wire.add_key_encodings(v1::KEY_ENCODING_DELTA_BITPACKED);
  const auto format = DecodePageFormat(wire);
  ASSERT_THAT(format, IsOk());
  EXPECT_TRUE(format->delta_keys);
  EXPECT_FALSE(format->implicit_keys);
}

}  // namespace
}  // namespace sparseagg::service
