// Statuses of calls, as gRPC sends them.
#ifndef SPARSEAGG_SERVICE_GRPC_CALL_ERRORS_H_
#define SPARSEAGG_SERVICE_GRPC_CALL_ERRORS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace sparseagg::service {

// Converts a status. The codes have the same numbers. Cuts long messages, since clients accept 8 KiB of headers.
grpc::Status ToGrpc(const absl::Status& status);

// The same. Adds the suggested retry delay of RetryLater to the call, as trailing metadata `grpc-retry-pushback-ms`,
// which the retries of gRPC clients follow. Call it once a call.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_CALL_ERRORS_H_
