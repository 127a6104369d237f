#include "service/codec/serialize.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_writer.h>

namespace sparseagg::service {

absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* bytes) {
  bool own_buffer;
  const grpc::Status encoded =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, bytes, &own_buffer);
  return encoded.ok() ? absl::OkStatus() : absl::InternalError("the response could not be serialized");
}

}  // namespace sparseagg::service
