// A message of an upload, whose keys and values stay where the wire left them until they are copied into columns.
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
#include "service/rounds/upload.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// Protocol Buffers copies `bytes` fields out of a message that it parses, which takes a sixth of the speed at which
// messages can be received; and what it makes of some messages takes a hundred times their memory, which nobody has
// reserved. So large ones are taken apart first: keys and values are left alone, what v1 does not know is passed over,
// and what remains, a few dozen bytes, is parsed. Not thread-safe.
class ChunkMessage {
 public:
  class Cursor;  // goes through the bytes

  // Keeps what it needs of `bytes`, and leaves them to the caller. INVALID_ARGUMENT: they are no UpdateChunk, or one
  // whose slices, or fields beside keys and values, are too many.
  absl::Status Parse(const grpc::ByteBuffer& bytes);
  // The same of an AggregateRequest. `request` gets the rest of it, with an empty chunk if there is one.
  // RESOURCE_EXHAUSTED: as ParseSpec, of that rest.
  absl::Status ParseFrom(const grpc::ByteBuffer& bytes, const Limits& limits, v1::AggregateRequest* request);

  // The slices of a message that was taken apart have no keys and values.
  const v1::UpdateChunk& head() const { return head_; }
  // At most so many keys come without values, as far as the message declares them. All others take bytes of their own,
  // or are refused before they are decoded; of these a few bytes may stand for very many.
  uint64_t MostKeysWithoutValues() const;
  // As DecodeChunk. Borrows from this object.
  absl::StatusOr<Chunk> Decode();

 private:
  // Where the keys and values of one slice lie.
  struct Bulk {
    std::vector<absl::string_view> keys;
    std::vector<absl::string_view> values;
    Column<char> packed_keys;  // in one piece
  };

  absl::Status Dump(const grpc::ByteBuffer& bytes);
  absl::Status TakeApart(Cursor& cursor, uint64_t end, std::string* head);

  v1::UpdateChunk head_;
  std::vector<grpc::Slice> slices_;
  std::vector<Bulk> bulk_;  // empty: head_ has all
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_CHUNK_MESSAGE_H_
