// Bodies of application/octet-stream: keys and values as they are, without Protocol Buffers.
#ifndef SPARSEAGG_SERVICE_GATEWAY_BULK_BODY_H_
#define SPARSEAGG_SERVICE_GATEWAY_BULK_BODY_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// Returns: whether a field of a chunk or of its slice is in the body; all others are in the query.
bool IsInBulkBody(const google::protobuf::FieldDescriptor* field);

// Makes an UpdateChunk with one slice. The body is the slice's keys, `key_bytes` of them, and then its values. All else
// comes from the query: the fields of UpdateChunk and of TensorSlice, and key_bytes.
// Returns: the serialized chunk, which shares the memory of the body.
// Errors: INVALID_ARGUMENT: an unknown parameter, a value that does not fit, or key_bytes above the size of the body.
absl::StatusOr<std::vector<grpc::Slice>> BulkToChunk(const HttpFields& parameters, const grpc::Slice& body);

// Makes the body of a result page: the bytes of the header as uint32, the header in JSON, filled with spaces so that
// what follows begins at a multiple of 8 bytes, then keys, values, counts and weights, and moments if there are any.
// The header is
//   {"sections":[bytes of keys, of values, of counts, of weights],"page":ResultPage without these bytes}
// with a fifth number for moments.
// Errors: INTERNAL: not a ResultPage.
absl::StatusOr<std::vector<std::string>> PageToBulk(const std::string& page);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_BULK_BODY_H_
