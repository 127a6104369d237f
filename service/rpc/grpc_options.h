// How gRPC is set up.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_OPTIONS_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_OPTIONS_H_

#include "service/base/limits.h"

namespace grpc {
class ServerBuilder;
}

namespace sparseagg::service {

// Sizes of messages, threads, what holds for each connection. A benchmark that compares with bare gRPC uses it, too.
void ConfigureTransport(const Limits& limits, grpc::ServerBuilder& builder);

// For the whole process, before gRPC is used. Where Abseil was built with assertions, as Debian's is, it follows who
// waits for whom among gRPC's mutexes, under a lock of its own; that took a twentieth of a server's time.
void DisableMutexDeadlockDetection();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_OPTIONS_H_
