#include "service/codec/chunk_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/parse.h"

namespace sparseagg::service {
namespace {

// Smaller messages are parsed whole: copying them is cheaper than taking them apart, and even parsed they stay small.
constexpr size_t kSmallestTakenApart = size_t{16} << 10;
constexpr uint64_t kChunk = WireTag(v1::AggregateRequest::kChunkFieldNumber, kWireBytes);

}  // namespace

absl::Status ChunkMessage::Parse(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() < kSmallestTakenApart) return service::Parse(bytes, &head_);
  RETURN_IF_ERROR(Dump(bytes));
  MessageCursor cursor(slices_);
  std::string head;
  RETURN_IF_ERROR(TakeApart(v1::UpdateChunk::descriptor(), cursor, 0, &head, &bulk_));
  return head_.ParseFromString(head) ? absl::OkStatus() : Malformed(v1::UpdateChunk::descriptor());
}

absl::Status ChunkMessage::ParseFrom(const grpc::ByteBuffer& bytes, const Limits& limits,
                                     v1::AggregateRequest* request) {
  if (bytes.Length() < kSmallestTakenApart) {
    absl::Status status = service::Parse(bytes, request);
    if (request->has_chunk()) head_.Swap(request->mutable_chunk());
    return status;
  }
  const google::protobuf::Descriptor* const type = v1::AggregateRequest::descriptor();
  RETURN_IF_ERROR(Dump(bytes));
  MessageCursor cursor(slices_);
  std::string rest;
  std::string head;
  bool has_chunk = false;
  while (cursor.left() > 0) {
    uint64_t tag;
    if (!ReadTag(cursor, &tag)) return Malformed(type);
    if (tag == kChunk) {
      uint64_t size;
      if (!cursor.Varint(&size) || size > cursor.left()) return Malformed(type);
      RETURN_IF_ERROR(TakeApart(v1::UpdateChunk::descriptor(), cursor, cursor.left() - size, &head, &bulk_));
      has_chunk = true;
    } else {
      RETURN_IF_ERROR(CopyField(type, type->name(), tag, cursor, &rest));
    }
  }
  google::protobuf::io::ArrayInputStream stream(rest.data(), static_cast<int>(rest.size()));
  RETURN_IF_ERROR(CheckSpec(type, rest.size(), &stream, limits));
  if (!request->ParseFromString(rest) || !head_.ParseFromString(head)) return Malformed(type);
  const std::string unknown = FindUnknownFields(*request);
  if (!unknown.empty()) return OlderThanTheClient(unknown);
  if (has_chunk) request->mutable_chunk();
  return absl::OkStatus();
}

absl::Status ChunkMessage::Dump(const grpc::ByteBuffer& bytes) {
  return bytes.Dump(&slices_).ok() ? absl::OkStatus() : absl::InternalError("gRPC cannot read the message");
}

absl::Status ChunkMessage::KeepMessage(const grpc::ByteBuffer& bytes) {
  if (slices_.empty()) RETURN_IF_ERROR(Dump(bytes));
  for (const grpc::Slice& slice : slices_) {
    message_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return absl::OkStatus();
}

uint64_t ChunkMessage::MostKeysWithoutValues() const {
  uint64_t keys = 0;
  for (int i = 0; i < head_.slices_size(); ++i) {
    const v1::TensorSlice& slice = head_.slices(i);
    const SliceBytes* const bulk = bulk_.empty() ? nullptr : &bulk_[static_cast<size_t>(i)];
    if (!slice.values().empty() || (bulk != nullptr && !bulk->values.empty())) continue;
    keys += std::min<uint64_t>(slice.num_keys(), UINT64_MAX - keys);
  }
  return keys;
}

absl::StatusOr<Chunk> ChunkMessage::Decode() {
  std::vector<SliceBulk> bulk;
  bulk.reserve(bulk_.size());
  packed_keys_.resize(bulk_.size());
  for (size_t i = 0; i < bulk_.size(); ++i) {
    SliceBulk found{ByteSpans(bulk_[i].keys), ByteSpans(bulk_[i].values)};
    const int encoding = head_.slices(static_cast<int>(i)).key_encoding();
    // Decoders of packed keys read them several times, so the keys must be in one span.
    if (encoding != v1::KEY_ENCODING_U32 && encoding != v1::KEY_ENCODING_U64) {
      found.keys = found.keys.Flatten(packed_keys_[i]);
    }
    bulk.push_back(found);
  }
  ASSIGN_OR_RETURN(Chunk chunk, DecodeChunk(head_, bulk));
  chunk.message = message_;
  return chunk;
}

}  // namespace sparseagg::service
