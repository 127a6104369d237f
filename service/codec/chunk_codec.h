// v1.UpdateChunk to what an upload takes.
#ifndef SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/byte_spans.h"
#include "service/rounds/upload.h"

namespace sparseagg::v1 {
class ServerInfo;
class UpdateChunk;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// The bulk of one slice, where it is not in the slice itself. Borrowed.
struct SliceBulk {
  ByteSpans keys;
  ByteSpans values;
};

// Borrows the bytes of `wire`, and those of `bulk`, which is empty or has the keys and values of each slice, to be used
// in place of the slice's own. INVALID_ARGUMENT: an encoding that is unknown, with the list of those that are known,
// or missing.
absl::StatusOr<Chunk> DecodeChunk(const v1::UpdateChunk& wire, absl::Span<const SliceBulk> bulk = {});

// Which encodings DecodeChunk takes.
void EncodeKnownEncodings(v1::ServerInfo* info);

// INVALID_ARGUMENT unless the id has 1 to 256 bytes. `field` is named in the message.
absl::Status CheckId(absl::string_view id, absl::string_view field);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_
