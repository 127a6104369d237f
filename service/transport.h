// How gRPC is set up.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_H_
#define SPARSEAGG_SERVICE_TRANSPORT_H_

#include "service/limits.h"

namespace grpc {
class ServerBuilder;
}

namespace sparseagg::service {

// Sizes of messages, threads, what holds for each connection. A benchmark that compares with bare gRPC uses it, too.
void ConfigureTransport(const Limits& limits, grpc::ServerBuilder& builder);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_H_
