#include "service/codec/page_format.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/wire/delta_keys.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

template <typename Key>
void EncodeKeys(absl::Span<const Key> keys, const PageFormat& format, v1::TensorSlice* slice) {
  slice->set_key_encoding(sizeof(Key) == sizeof(uint32_t) ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
  if (!keys.empty()) {
    if (format.implicit_keys && uint64_t{keys.back()} - keys.front() == keys.size() - 1) {
      slice->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
      slice->set_first_key(keys.front());
      return;
    }
    if (format.delta_keys && wire::DeltaKeyBytes(keys) < keys.size() * sizeof(Key)) {
      slice->set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
      slice->set_first_key(keys.front());
      slice->set_keys(wire::EncodeDeltaKeys(keys));
      return;
    }
  }
  slice->set_keys(BytesOf(keys.data(), 0, keys.size()));
}

v1::ValueEncoding EncodingOf(wire::ValuePacking packing, DType dtype) {
  switch (packing) {
    case wire::ValuePacking::kFloat32:
      return v1::VALUE_ENCODING_FLOAT32;
    case wire::ValuePacking::kFloat16:
      return v1::VALUE_ENCODING_FLOAT16;
    case wire::ValuePacking::kBFloat16:
      return v1::VALUE_ENCODING_BFLOAT16;
    case wire::ValuePacking::kInt8Scaled:
      return v1::VALUE_ENCODING_INT8_SCALED;
    case wire::ValuePacking::kOwn:
      break;
  }
  return static_cast<v1::ValueEncoding>(EncodeDType(dtype));
}

}  // namespace

absl::StatusOr<PageFormat> DecodePageFormat(const v1::ResultFormat& wire) {
  PageFormat format;
  const auto lists = [&](v1::KeyEncoding encoding) {
    return std::find(wire.key_encodings().begin(), wire.key_encodings().end(), encoding) != wire.key_encodings().end();
  };
  format.implicit_keys = lists(v1::KEY_ENCODING_IMPLICIT);
  format.delta_keys = lists(v1::KEY_ENCODING_DELTA_BITPACKED);
  switch (static_cast<int>(wire.value_encoding())) {
    case v1::VALUE_ENCODING_UNSPECIFIED:
      return format;
    case v1::VALUE_ENCODING_FLOAT32:
      format.values = wire::ValuePacking::kFloat32;
      return format;
    case v1::VALUE_ENCODING_FLOAT16:
      format.values = wire::ValuePacking::kFloat16;
      return format;
    case v1::VALUE_ENCODING_BFLOAT16:
      format.values = wire::ValuePacking::kBFloat16;
      return format;
    case v1::VALUE_ENCODING_INT8_SCALED:
      format.values = wire::ValuePacking::kInt8Scaled;
      return format;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("format.value_encoding ", static_cast<int>(wire.value_encoding()),
                       " is not for results; known are FLOAT32, FLOAT16, BFLOAT16, INT8_SCALED"));
  }
}

void EncodePageKeys(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice) {
  std::visit(
      [&](const auto& keys) {
        EncodeKeys(absl::MakeConstSpan(keys.data(), keys.size()).subspan(rows.begin, rows.end - rows.begin), format,
                   slice);
      },
      result.keys);
}

void EncodePageValues(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice) {
  const uint64_t row_bytes = result.row_width * SizeOf(result.dtype);
  if (format.values != wire::ValuePacking::kOwn) {
    std::optional<std::string> packed =
        wire::PackValues(format.values, result.dtype, result.values.data() + rows.begin * row_bytes,
                         (rows.end - rows.begin) * result.row_width);
    if (packed.has_value()) {
      slice->set_value_encoding(EncodingOf(format.values, result.dtype));
      slice->set_values(*std::move(packed));
      return;
    }
  }
  slice->set_value_encoding(EncodingOf(wire::ValuePacking::kOwn, result.dtype));
  slice->set_values(BytesOf(result.values.data(), rows.begin * row_bytes, rows.end * row_bytes));
}

}  // namespace sparseagg::service
