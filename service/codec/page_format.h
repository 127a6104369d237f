// How a reader of results wants keys and values packed.
#ifndef SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_
#define SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/result.h"
#include "host/wire/packed_values.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::v1 {
class ResultFormat;
class TensorSlice;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// By default what every reader knows.
struct PageFormat {
  // Key encodings that may be used.
  bool implicit_keys = false;
  bool delta_keys = false;
  bool bitmap_keys = false;
  // What float values are packed in, where that is narrower than they are and holds them.
  wire::ValuePacking values = wire::ValuePacking::kOwn;
};

// Key encodings that are unknown here are ignored. INVALID_ARGUMENT: a value encoding that is unknown, or that results
// do not come in.
absl::StatusOr<PageFormat> DecodePageFormat(const v1::ResultFormat& wire);

// Sets key_encoding, first_key and keys of a page of a sparse result: the smallest that the format allows, and the
// plain encoding where none is smaller.
void EncodePageKeys(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice);

// Sets value_encoding and values of a page of a result that has values.
void EncodePageValues(const Result& result, RowInterval rows, const PageFormat& format, v1::TensorSlice* slice);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_PAGE_FORMAT_H_
