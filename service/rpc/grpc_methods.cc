// The methods of the service: how gRPC calls their handlers, and the check of the caller before each.
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/server_callback.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/base/to_status.h"
#include "service/rpc/call_context.h"
#include "service/rpc/call_errors.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/grpc_unary_call.h"

namespace sparseagg::service {
namespace {

using grpc::internal::RpcMethod;

// A call that has ended before its handler: gRPC's reactor, with a status.
template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

// Returns: the path of a method in HTTP/2. gRPC keeps the pointer, so that the text is never freed.
const char* PathOf(Method method) {
  static const std::array<std::string, kNumMethods>& paths = *[] {
    auto* made = new std::array<std::string, kNumMethods>;
    for (size_t i = 0; i < kNumMethods; ++i) {
      (*made)[i] = absl::StrCat("/", v1::UpdateChunk::descriptor()->file()->service(0)->full_name(), "/",
                                Name(static_cast<Method>(i)));
    }
    return made;
  }();
  return paths[static_cast<size_t>(method)].c_str();
}

}  // namespace

template <template <typename, typename> typename Handler, typename Reactor, typename... Args>
void AggregationService::Serve(Method method, RpcMethod::RpcType type,
                               std::function<Reactor*(Context*, Args...)> handle) {
  const auto checked = [this, method, handle = std::move(handle)](grpc::CallbackServerContext* context,
                                                                  Args... args) -> Reactor* {
    auto* const call = static_cast<CallContext*>(context);  // RegisterWith
    const absl::Status admitted = ToStatus([&] { return call->AdmitTo(&server_, method); });
    return admitted.ok() ? handle(call, args...) : new RefusedCall<Reactor>(admitted);
  };
  AddMethod(new grpc::internal::RpcServiceMethod(PathOf(method), type, nullptr));
  MarkMethodRawCallback(num_methods_++, new Handler<grpc::ByteBuffer, grpc::ByteBuffer>(checked));
}

void AggregationService::ServeUnary(const AggregationMethods::Entry& entry) {
  using Start = std::function<grpc::ServerUnaryReactor*(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer*)>;
  const Start start = [this, handler = entry.handler](Context* context, const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
    auto call = std::make_shared<GrpcUnaryCall>(&server_, context, request, response);
    GrpcUnaryCall* const reactor = call.get();
    reactor->KeepAlive(call);
    (methods_.*handler)(std::move(call));
    return reactor;
  };
  Serve<grpc::internal::CallbackUnaryHandler>(entry.method, RpcMethod::NORMAL_RPC, start);
}

AggregationService::AggregationService(ServerContext* server, Registry* registry, AggregationMethods* methods)
    : server_(*server), registry_(*registry), methods_(*methods) {
  using grpc::ByteBuffer;
  using grpc::internal::CallbackBidiHandler;
  using grpc::internal::CallbackClientStreamingHandler;
  using grpc::internal::CallbackServerStreamingHandler;
  using Reader = std::function<grpc::ServerReadReactor<ByteBuffer>*(Context*, ByteBuffer*)>;
  using Writer = std::function<grpc::ServerWriteReactor<ByteBuffer>*(Context*, const ByteBuffer*)>;
  using Bidi = std::function<grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>*(Context*)>;
  for (const AggregationMethods::Entry& entry : AggregationMethods::Entries()) ServeUnary(entry);
  // Workaround: gRPC 1.51 receives all of a unary message before it calls the handler (grpc#29836). A client stream of
  // one message looks the same to clients, and its handler reads when in-flight memory is reserved. Remove with: a gRPC
  // whose unary handlers start the read themselves.
  Serve<CallbackClientStreamingHandler>(
      Method::kPutChunk, RpcMethod::CLIENT_STREAMING,
      Reader([this](Context* context, ByteBuffer* response) { return PutChunk(context, response); }));
  Serve<CallbackClientStreamingHandler>(
      Method::kSubmitUpdate, RpcMethod::CLIENT_STREAMING,
      Reader([this](Context* context, ByteBuffer* response) { return SubmitUpdate(context, response); }));
  Serve<CallbackServerStreamingHandler>(
      Method::kStreamResult, RpcMethod::SERVER_STREAMING,
      Writer([this](Context* context, const ByteBuffer* request) { return StreamResult(context, request); }));
  Serve<CallbackBidiHandler>(Method::kAggregate, RpcMethod::BIDI_STREAMING,
                             Bidi([this](Context* context) { return Aggregate(context); }));
}

void AggregationService::RegisterWith(grpc::ServerBuilder& builder) {
  builder.SetContextAllocator(std::make_unique<CallContexts>());
  builder.RegisterService(this);
}

}  // namespace sparseagg::service
