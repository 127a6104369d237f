// Decoder from v1.UpdateChunk to the Chunk of an upload.
#ifndef SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/base/byte_spans.h"
#include "service/rounds/upload.h"

namespace sparseagg::v1 {
class ServerInfo;
class UpdateChunk;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// Keys and values of one slice that lie outside its message. Borrowed.
struct SliceBulk {
  ByteSpans keys;
  ByteSpans values;
};

// Decodes a chunk. `bulk` is empty, or has one element for each slice, which replaces the slice's own keys and values.
// Returns: a chunk that borrows the bytes of `wire` and of `bulk`. Keys and values are not validated; Upload does that.
// Errors: INVALID_ARGUMENT: a key encoding is missing, or an encoding is unknown (the message lists the known ones), or
// a slice declared without values has some.
absl::StatusOr<Chunk> DecodeChunk(const v1::UpdateChunk& wire, absl::Span<const SliceBulk> bulk = {});

// Writes the list of encodings that DecodeChunk accepts.
void EncodeKnownEncodings(v1::ServerInfo* info);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_CHUNK_CODEC_H_
