// Encodings of keys and values in result pages, as the reader requested them.
#ifndef SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_
#define SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_

#include <bit>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "host/result.h"
#include "host/wire/packed_values.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::v1 {
class ResultFormat;
class TensorSlice;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// Copy of a column's elements to wire bytes.
static_assert(std::endian::native == std::endian::little, "columns are copied to the wire as they are");

// Returns: the bytes of elements [begin, end). `column` may be null if the interval is empty.
template <typename T>
std::string BytesOf(const T* column, uint64_t begin, uint64_t end) {
  if (begin == end) return "";
  return std::string(reinterpret_cast<const char*>(column + begin), (end - begin) * sizeof(T));
}

// The default format uses only encodings that every reader knows.
struct PageFormat {
  // Key encodings that the page may use in addition to U32 and U64.
  bool implicit_keys = false;
  bool delta_keys = false;
  // Packing of float values. Used only where it is narrower than the result's dtype and holds all values of the page.
  wire::ValuePacking values = wire::ValuePacking::kOwn;
};

// Decodes the requested format. Unknown key encodings are ignored.
// Errors: INVALID_ARGUMENT: a value encoding that is unknown, or that results do not use.
absl::StatusOr<PageFormat> DecodePageFormat(const v1::ResultFormat& wire);

// Sets key_encoding, first_key and keys of a page of a sparse result, in the smallest encoding that the format allows.
// The plain encoding (U32 or U64) is used if no other is smaller.
void EncodePageKeys(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice);

// Sets value_encoding and values of a page: in the format's packing if it fits, otherwise in the result's dtype.
// Requires: result.has_values.
void EncodePageValues(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_
