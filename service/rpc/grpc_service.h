// The gRPC service sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_

#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "service/api/aggregation_methods.h"
#include "service/auth/authorize.h"
#include "service/rounds/registry.h"
#include "service/rpc/call_context.h"
#include "service/server_context.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// The service as gRPC calls it: unary methods go to AggregationMethods, streaming methods have reactors of their own.
//
// gRPC calls a handler on one of its own threads, where it must not block. A handler returns a reactor
// (call_reactor.h), on which gRPC reports the rest of the call.
//
// A handler runs only for callers that may call its method (CallContext::AdmitTo); grpc_methods.cc sees to it for all
// of them. Every method gets its message unparsed, for two reasons: the server bounds the memory of the parsed message
// before it parses (codec/parse.h), and it copies the keys and values of a chunk only once (codec/chunk_message.h).
//
// Owned by the server, which outlives all calls. Borrows the server context, the registry and the methods. Thread-safe.
class AggregationService final : public grpc::Service {
 public:
  AggregationService(ServerContext* server, Registry* registry, AggregationMethods* methods);

  // Adds this service to a server.
  void RegisterWith(grpc::ServerBuilder& builder);

  using Context = CallContext;

  // grpc_uploads.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutChunk(Context*, grpc::ByteBuffer* response);
  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response);
  // grpc_results.cc
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*);
  // grpc_aggregate.cc
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Aggregate(Context*);

  // ---- for the reactors ----

  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }
  AggregationMethods& methods() { return methods_; }

 private:
  // Adds a method to the service. `Handler`: gRPC's adapter for methods of `type`; `handle` takes the context and
  // gRPC's other arguments, and returns the reactor.
  template <template <typename, typename> typename Handler, typename Reactor, typename... Args>
  void Serve(Method method, grpc::internal::RpcMethod::RpcType type, std::function<Reactor*(Context*, Args...)> handle);
  void ServeUnary(const AggregationMethods::Entry& entry);

  ServerContext& server_;
  Registry& registry_;
  AggregationMethods& methods_;
  int num_methods_ = 0;  // served
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
