// Statuses of calls, as gRPC sends them.
#ifndef SPARSEAGG_SERVICE_RPC_CALL_ERRORS_H_
#define SPARSEAGG_SERVICE_RPC_CALL_ERRORS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Converts a status. The codes have the same numbers. Cuts long messages, since clients accept 8 KiB of headers.
grpc::Status ToGrpc(const absl::Status& status);

// Makes a RESOURCE_EXHAUSTED status for a lack that passes by itself, and adds the suggested retry delay to the call:
// in the message, and as trailing metadata `grpc-retry-pushback-ms`, which the retries of gRPC clients follow.
grpc::Status RetryLater(absl::string_view reason, grpc::CallbackServerContext& context);

// Makes that status for lack of in-flight memory, and counts the refusal in the metrics.
grpc::Status NoInFlightMemory(ServerContext& server, grpc::CallbackServerContext& context);

// Makes the UNAVAILABLE status of a stream that was slow while other calls waited for its in-flight memory.
absl::Status ReclaimedError(const ServerContext& server);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_CALL_ERRORS_H_
