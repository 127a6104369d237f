#include "service/codec/chunk_codec.h"

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kKnownKeyEncodings = "U32, U64, IMPLICIT, DELTA_BITPACKED";

absl::Status Invalid(const v1::UpdateChunk& chunk, const v1::TensorSlice& slice, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", slice.tensor(), "', chunk ", chunk.sequence(), ": ", problem));
}

absl::StatusOr<SliceView::Keys> DecodeKeyEncoding(const v1::UpdateChunk& chunk, const v1::TensorSlice& slice,
                                                  const ByteSpans& keys) {
  switch (static_cast<int>(slice.key_encoding())) {
    case v1::KEY_ENCODING_U32:
      return SliceView::Keys::kU32;
    case v1::KEY_ENCODING_U64:
      return SliceView::Keys::kU64;
    case v1::KEY_ENCODING_IMPLICIT:
      return SliceView::Keys::kImplicit;
    case v1::KEY_ENCODING_DELTA_BITPACKED:
      return SliceView::Keys::kDeltaBitpacked;
    case v1::KEY_ENCODING_UNSPECIFIED:
      if (keys.empty() && slice.num_keys() == 0) return SliceView::Keys::kU32;
      return Invalid(chunk, slice, absl::StrCat("key_encoding is missing; known are ", kKnownKeyEncodings));
    default:
      return Invalid(chunk, slice,
                     absl::StrCat("key_encoding ", static_cast<int>(slice.key_encoding()),
                                  " is unknown here; known are ", kKnownKeyEncodings));
  }
}

absl::StatusOr<ChunkSlice> DecodeSlice(const v1::UpdateChunk& chunk, const v1::TensorSlice& wire,
                                       const SliceBulk& bulk) {
  ChunkSlice slice;
  slice.tensor = wire.tensor();
  ASSIGN_OR_RETURN(slice.view.key_type, DecodeKeyEncoding(chunk, wire, bulk.keys));
  slice.view.keys = bulk.keys;
  slice.view.first_key = wire.first_key();
  slice.view.num_keys = wire.num_keys();
  slice.view.values = bulk.values;
  slice.keys_sorted = wire.keys_sorted();
  slice.keys_unique = wire.keys_unique();
  const int encoding = wire.value_encoding();
  if (encoding == v1::VALUE_ENCODING_NONE) {
    slice.view.has_values = false;
    if (!bulk.values.empty()) {
      return Invalid(chunk, wire, absl::StrCat(bulk.values.size(), " bytes of values under value_encoding NONE"));
    }
    return slice;
  }
  if (encoding == v1::VALUE_ENCODING_PARTIAL) {
    slice.is_partial = true;
    if (!bulk.keys.empty() || wire.num_keys() != 0 || wire.first_key() != 0) {
      return Invalid(chunk, wire, "keys under value_encoding PARTIAL, whose blocks have them");
    }
    return slice;
  }
  if (encoding == v1::VALUE_ENCODING_INT8_SCALED) {
    slice.view.value_packing = wire::ValuePacking::kInt8Scaled;
    return slice;
  }
  // All other value encodings have the numbers of the dtypes.
  static_assert(v1::VALUE_ENCODING_FLOAT32 == static_cast<int>(v1::DTYPE_FLOAT32) &&
                v1::VALUE_ENCODING_UINT64 == static_cast<int>(v1::DTYPE_UINT64));
  slice.dtype = DecodeDType(encoding);
  if (encoding != v1::VALUE_ENCODING_UNSPECIFIED && !slice.dtype.has_value()) {
    return Invalid(chunk, wire,
                   absl::StrCat("value_encoding ", encoding,
                                " is unknown here; known are FLOAT32, FLOAT16, BFLOAT16, "
                                "FLOAT64, INT32, INT64, UINT32, UINT64, NONE, INT8_SCALED, PARTIAL"));
  }
  return slice;
}

}  // namespace

absl::StatusOr<Chunk> DecodeChunk(const v1::UpdateChunk& wire, absl::Span<const SliceBulk> bulk) {
  Chunk chunk;
  chunk.sequence = wire.sequence();
  chunk.last = wire.last();
  if (wire.has_weight()) chunk.weight = wire.weight();
  if (wire.has_base_version()) chunk.base_version = wire.base_version();
  chunk.slices.reserve(static_cast<size_t>(wire.slices_size()));
  for (size_t i = 0; i < static_cast<size_t>(wire.slices_size()); ++i) {
    const v1::TensorSlice& slice = wire.slices(static_cast<int>(i));
    const SliceBulk own{slice.keys(), slice.values()};
    ASSIGN_OR_RETURN(ChunkSlice decoded, DecodeSlice(wire, slice, bulk.empty() ? own : bulk[i]));
    chunk.slices.push_back(decoded);
  }
  return chunk;
}

void EncodeKnownEncodings(v1::ServerInfo* info) {
  for (int encoding = v1::KEY_ENCODING_U32; encoding <= v1::KEY_ENCODING_DELTA_BITPACKED; ++encoding) {
    info->add_key_encodings(static_cast<v1::KeyEncoding>(encoding));
  }
  for (int encoding = v1::VALUE_ENCODING_FLOAT32; encoding <= v1::VALUE_ENCODING_PARTIAL; ++encoding) {
    info->add_value_encodings(static_cast<v1::ValueEncoding>(encoding));
  }
}

}  // namespace sparseagg::service
