// Messages that come unparsed, and what they may become.
#ifndef SPARSEAGG_SERVICE_CODEC_PARSE_H_
#define SPARSEAGG_SERVICE_CODEC_PARSE_H_

#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "service/base/limits.h"

namespace sparseagg::service {

// What a message of names and ids may have: little enough for what Protocol Buffers makes of it, which may be a hundred
// times as large, to be nothing.
inline constexpr uint64_t kMostNamesBytes = 4096;

// INVALID_ARGUMENT: no such message.
absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);
// What Parse says of a message that is none.
absl::Status Malformed(const google::protobuf::Descriptor* message);

// RESOURCE_EXHAUSTED, and not parsed: more than kMostNamesBytes.
absl::Status ParseNames(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Of a message with a round's spec, or with names of its tensors. RESOURCE_EXHAUSTED, and not parsed: more bytes,
// fields or tensors than max_tensors leaves room for.
absl::Status ParseSpec(const grpc::ByteBuffer& bytes, const Limits& limits, google::protobuf::Message* message);
// That check alone, of `size` bytes.
absl::Status CheckSpec(const google::protobuf::Descriptor* message, uint64_t size,
                       google::protobuf::io::ZeroCopyInputStream* bytes, const Limits& limits);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_PARSE_H_
