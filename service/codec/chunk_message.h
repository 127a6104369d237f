// Parser of upload messages that leaves keys and values in gRPC's buffers.
#ifndef SPARSEAGG_SERVICE_CODEC_CHUNK_MESSAGE_H_
#define SPARSEAGG_SERVICE_CODEC_CHUNK_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "service/base/limits.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/sliced_message.h"
#include "service/rounds/upload.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// One received UpdateChunk. Owned by the call that received it: one Parse or ParseFrom, then Decode, then the round
// copies the keys and values. Not thread-safe.
//
// Protocol Buffers copies `bytes` fields, which costs a sixth of the receive rate. Some messages take a hundred times
// their wire size once parsed, which no reservation covers. So messages of 16 KiB and more are taken apart first: keys
// and values stay in gRPC's slices, unknown fields are refused, and Protocol Buffers parses the rest, usually a few
// dozen bytes. Smaller messages are parsed whole.
class ChunkMessage {
 public:
  // Parses an UpdateChunk. `bytes` is not changed; this object shares its slices.
  // Errors: INVALID_ARGUMENT: not an UpdateChunk, or unknown fields, or too many slices, or too many bytes besides keys
  // and values.
  absl::Status Parse(const grpc::ByteBuffer& bytes);
  // Parses an AggregateRequest. The chunk goes into this object; `request` gets all other fields, and an empty chunk if
  // the message has a chunk.
  // Errors: as of Parse. RESOURCE_EXHAUSTED: as of CheckSpec for the other fields, if the message is taken apart.
  absl::Status ParseFrom(const grpc::ByteBuffer& bytes, const Limits& limits, v1::AggregateRequest* request);

  // Makes Decode give the chunk its message, for the store. `bytes`: as of Parse, which came before.
  absl::Status KeepMessage(const grpc::ByteBuffer& bytes);

  // Returns: the chunk. If the message was taken apart, its slices have no keys and values.
  const v1::UpdateChunk& head() const { return head_; }
  // Returns: the most keys that slices without values declare. A few bytes on the wire may declare very many such keys;
  // all other keys take bytes of the message, or are refused before they are decoded. Saturates.
  uint64_t MostKeysWithoutValues() const;
  // Decodes the chunk. Returns: a chunk that borrows from this object. Errors: as of DecodeChunk.
  absl::StatusOr<Chunk> Decode();

 private:
  absl::Status Dump(const grpc::ByteBuffer& bytes);

  v1::UpdateChunk head_;
  std::vector<grpc::Slice> slices_;
  std::vector<SliceBytes> bulk_;            // in slices_, by slice; empty: the message was parsed whole
  std::vector<Column<char>> packed_keys_;   // in one span, of slices whose keys are not U32 or U64; made by Decode
  std::vector<absl::string_view> message_;  // slices_, if the message is kept
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_CHUNK_MESSAGE_H_
