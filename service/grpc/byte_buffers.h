// Messages between gRPC's buffers and those of the methods.
#ifndef SPARSEAGG_SERVICE_GRPC_BYTE_BUFFERS_H_
#define SPARSEAGG_SERVICE_GRPC_BYTE_BUFFERS_H_

#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Shorter pieces are copied, which costs less than to share them.
inline constexpr size_t kSharedBytes = 2048;

inline void AppendTo(absl::Cord& cord, const grpc::Slice& slice) {
  const absl::string_view bytes(reinterpret_cast<const char*>(slice.begin()), slice.size());
  if (bytes.size() < kSharedBytes) return cord.Append(bytes);
  cord.Append(absl::MakeCordFromExternal(bytes, [slice] {}));
}

// Returns: the bytes of a received message, which share gRPC's memory.
inline absl::Cord ToCord(const grpc::ByteBuffer& bytes) {
  absl::Cord cord;
  grpc::Slice slice;
  std::vector<grpc::Slice> slices;
  if (!bytes.Valid()) return cord;
  if (bytes.TrySingleSlice(&slice).ok()) {
    AppendTo(cord, slice);
  } else if (bytes.Dump(&slices).ok()) {  // as all that are not compressed
    for (const grpc::Slice& each : slices) AppendTo(cord, each);
  }
  return cord;
}

// Returns: a slice that owns the text.
inline grpc::Slice ToSlice(std::string text) {
  if (text.size() < kSharedBytes) return grpc::Slice(text);
  auto* const owner = new std::string(std::move(text));
  const auto free = [](void* owned) { delete static_cast<std::string*>(owned); };
  return grpc::Slice(owner->data(), owner->size(), free, owner);
}
inline grpc::ByteBuffer ToByteBuffer(std::string text) {
  const grpc::Slice slice = ToSlice(std::move(text));
  return grpc::ByteBuffer(&slice, 1);
}

// Replaces `bytes` by the serialised message, without a copy: of messages that may be large.
inline absl::Status SerializeTo(const google::protobuf::Message& message, grpc::ByteBuffer* bytes) {
  bool own_buffer;
  const grpc::Status encoded =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, bytes, &own_buffer);
  return encoded.ok() ? absl::OkStatus() : absl::InternalError("the response could not be serialized");
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_BYTE_BUFFERS_H_
