// The settings of gRPC: limits, keepalive and threads.
#ifndef SPARSEAGG_SERVICE_GRPC_GRPC_OPTIONS_H_
#define SPARSEAGG_SERVICE_GRPC_GRPC_OPTIONS_H_

#include "service/base/limits.h"

namespace grpc {
class ServerBuilder;
}

namespace sparseagg::service {

// Sets message sizes, keepalive, flow control, compression, memory quota and threads of `builder`. The benchmark that
// compares with bare gRPC uses the same settings.
void ConfigureTransport(const Limits& limits, grpc::ServerBuilder& builder);

// Switches off the deadlock detection of absl::Mutex, which gRPC uses, for the whole process. Call it before gRPC is
// used.
//
// Workaround: Debian's Abseil 20220623 is built with assertions, and records the order of all locks under one lock of
// its own. That took a twentieth of the server's time. Remove with: an Abseil that is built with NDEBUG.
void DisableMutexDeadlockDetection();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_GRPC_OPTIONS_H_
