// The methods of the service whose messages are streams, or treated as such.
#include "service/grpc/grpc_service.h"

namespace sparseagg::service {

AggregationService::AggregationService(ServerContext* server, Registry* registry, AggregationMethods* methods)
    : RpcService(server, methods->Entries()), registry_(*registry), methods_(*methods) {
  using grpc::internal::CallbackBidiHandler;
  using grpc::internal::CallbackClientStreamingHandler;
  using grpc::internal::CallbackServerStreamingHandler;
  using grpc::internal::RpcMethod;
  // Workaround: gRPC 1.51 receives all of a unary message before it calls the handler (grpc#29836). A client stream of
  // one message looks the same to clients, and its handler reads when in-flight memory is reserved. Remove with: a gRPC
  // whose unary handlers start the read themselves.
  Serve<CallbackClientStreamingHandler>(Method::kPutChunk, RpcMethod::CLIENT_STREAMING, &AggregationService::PutChunk);
  Serve<CallbackClientStreamingHandler>(Method::kSubmitBatch, RpcMethod::CLIENT_STREAMING,
                                        &AggregationService::SubmitBatch);
  Serve<CallbackClientStreamingHandler>(Method::kPutResultRange, RpcMethod::CLIENT_STREAMING,
                                        &AggregationService::PutResultRange);
  Serve<CallbackClientStreamingHandler>(Method::kSubmitUpdate, RpcMethod::CLIENT_STREAMING,
                                        &AggregationService::SubmitUpdate);
  Serve<CallbackServerStreamingHandler>(Method::kStreamResult, RpcMethod::SERVER_STREAMING,
                                        &AggregationService::StreamResult);
  Serve<CallbackServerStreamingHandler>(Method::kExportSubmissions, RpcMethod::SERVER_STREAMING,
                                        &AggregationService::ExportSubmissions);
  Serve<CallbackServerStreamingHandler>(Method::kExportPartial, RpcMethod::SERVER_STREAMING,
                                        &AggregationService::ExportPartial);
  Serve<CallbackBidiHandler>(Method::kAggregate, RpcMethod::BIDI_STREAMING, &AggregationService::Aggregate);
}

}  // namespace sparseagg::service
