#include "service/grpc/grpc_service.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/grpc/call_context.h"

namespace sparseagg::service {

void GrpcUnaryCall::Send(const absl::Status& status) {
  if (status.ok()) *sent_ = ToByteBuffer(std::move(response_));
  grpc::ServerUnaryReactor::Finish(ToGrpc(status, context_));
}

std::function<void()> GrpcUnaryCall::ReclaimFunction() {
  return [canceller = canceller_] { canceller->Cancel(); };
}

void RpcService::ServeUnary(const MethodEntry& method) {
  using Start = std::function<grpc::ServerUnaryReactor*(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer*)>;
  const Start start = [this, handler = method.handler](Context* context, const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
    auto call = std::make_shared<GrpcUnaryCall>(&server_, context, request, response);
    call->KeepAlive(call);
    handler(call);
    return call.get();
  };
  ServeWith<grpc::internal::CallbackUnaryHandler>(method.method, grpc::internal::RpcMethod::NORMAL_RPC, start);
}

const char* RpcService::PathOf(Method method) {
  static const std::array<std::string, kNumMethods>& paths = *[] {
    auto* made = new std::array<std::string, kNumMethods>;
    for (size_t i = 0; i < kNumMethods; ++i) {
      const auto each = static_cast<Method>(i);
      (*made)[i] = absl::StrCat("/", ServiceName(each), "/", Name(each));
    }
    return made;
  }();
  return paths[static_cast<size_t>(method)].c_str();
}

// The methods of the service whose messages are streams, or treated as such.
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
