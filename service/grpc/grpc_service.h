// The gRPC service sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_GRPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_GRPC_GRPC_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "service/grpc/rpc_service.h"
#include "service/handlers/aggregation_methods.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The unary methods go to AggregationMethods; PutChunk, SubmitBatch, PutResultRange and the streaming methods have
// reactors of their own, and their messages are copied only once (codec/sliced_message.h). Borrows the registry and the
// methods. Otherwise as RpcService.
class AggregationService final : public RpcService {
 public:
  AggregationService(ServerContext* server, Registry* registry, AggregationMethods* methods);

  // grpc_uploads.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutChunk(Context*, grpc::ByteBuffer* response);
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitBatch(Context*, grpc::ByteBuffer* response);
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutResultRange(Context*, grpc::ByteBuffer* response);
  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response);
  // grpc_results.cc
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*);
  // grpc_export.cc
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportSubmissions(Context*, const grpc::ByteBuffer*);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportPartial(Context*, const grpc::ByteBuffer*);
  // grpc_aggregate.cc
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Aggregate(Context*);

  // ---- for the reactors ----

  Registry& registry() { return registry_; }
  AggregationMethods& methods() { return methods_; }

 private:
  Registry& registry_;
  AggregationMethods& methods_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_GRPC_SERVICE_H_
