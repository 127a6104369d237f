// Small things that all handlers need.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_UTIL_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_UTIL_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/base/log.h"
#include "service/codec/parse.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The codes are the same numbers. Messages are cut to what fits the headers that clients accept.
grpc::Status ToGrpc(const absl::Status& status);

// RESOURCE_EXHAUSTED for want of `what`, and when to try again: in the trailing metadata grpc-retry-pushback-ms, which
// gRPC's own retries go by, too.
grpc::Status TryAgain(absl::string_view what, grpc::CallbackServerContext& context);
// The same for want of memory in transit; counted.
grpc::Status NoInFlightMemory(ServerContext& server, grpc::CallbackServerContext& context);
// What a client is told whose credit was called in.
absl::Status Reclaimed(const ServerContext& server);

// INTERNAL: it could not be encoded.
absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* buffer);

// One line a call, with the caller's traceparent if there is one.
void LogCall(LogLevel level, const grpc::CallbackServerContext& context, absl::string_view method,
             absl::string_view round, absl::string_view client = "");

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_UTIL_H_
