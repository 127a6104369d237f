// Messages to gRPC's bytes.
#ifndef SPARSEAGG_SERVICE_CODEC_SERIALIZE_H_
#define SPARSEAGG_SERVICE_CODEC_SERIALIZE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace sparseagg::service {

// Replaces `bytes` by the serialized message.
// Errors: INTERNAL if gRPC cannot serialize it.
absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_SERIALIZE_H_
