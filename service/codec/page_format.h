// Encodings of keys and values in result pages, as the reader requested them.
#ifndef SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_
#define SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_

#include "absl/status/statusor.h"
#include "host/result.h"
#include "host/wire/packed_values.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::v1 {
class ResultFormat;
class TensorSlice;
}  // namespace sparseagg::v1

namespace sparseagg::service {

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
