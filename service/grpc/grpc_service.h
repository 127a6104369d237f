// The gRPC services of this server: unary calls, what services have in common, and sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_GRPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_GRPC_GRPC_SERVICE_H_

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "service/auth/authorize.h"
#include "service/grpc/byte_buffers.h"
#include "service/grpc/call_context.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The reactor of a unary call. Owned by itself until OnDone, and by the tasks of the method.
class GrpcUnaryCall final : public UnaryCall, public grpc::ServerUnaryReactor {
 public:
  GrpcUnaryCall(ServerContext* server, CallContext* context, const grpc::ByteBuffer* request,
                grpc::ByteBuffer* response)
      : UnaryCall(server),
        context_(*context),
        request_(ToCord(*request)),
        sent_(response),
        canceller_(std::make_shared<CallCanceller>(server, context)) {}

  // Keeps the call alive until OnDone. Call it before the method.
  void KeepAlive(std::shared_ptr<GrpcUnaryCall> self) { self_ = std::move(self); }

  const Caller& caller() const override { return context_; }
  const absl::Cord& request() const override { return request_; }
  std::string* response() override { return &response_; }

  void OnCancel() override { UnaryCall::Cancel(); }
  void OnDone() override {
    canceller_->Detach();
    self_.reset();
  }

 private:
  void Send(const absl::Status& status) override;
  std::function<void()> ReclaimFunction() override;

  CallContext& context_;
  const absl::Cord request_;
  std::string response_;
  grpc::ByteBuffer* const sent_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::shared_ptr<GrpcUnaryCall> self_;
};

// A service as gRPC calls it: it registers the handlers of the methods, and checks the caller before each.
//
// gRPC calls a handler on one of its own threads, where it must not block. A handler returns a reactor (GrpcUnaryCall,
// or CallReactor of reactors.h), on which gRPC reports the rest of the call. It runs only for callers that may call its
// method (CallContext::AdmitTo). Every method gets its message unparsed, since the server bounds the memory of the
// parsed message before it parses (codec/parse.h).
//
// Owned by the server, which outlives all calls. Borrows the server context. Thread-safe. Requires: the builder of the
// server has a CallContexts.
class RpcService : public grpc::Service {
 public:
  using Context = CallContext;

  // `methods`: the unary methods of the service.
  RpcService(ServerContext* server, const std::vector<MethodEntry>& methods) : server_(*server) {
    for (const MethodEntry& method : methods) ServeUnary(method);
  }

  ServerContext& context() { return server_; }

 protected:
  // Adds a method. `Adapter`: gRPC's for methods of `type`. `handler`: a member of `Service`, which is derived from
  // this.
  template <template <typename, typename> typename Adapter, typename Service, typename Reactor, typename... Args>
  void Serve(Method method, grpc::internal::RpcMethod::RpcType type, Reactor* (Service::*handler)(Context*, Args...)) {
    using Handler = std::function<Reactor*(Context*, Args...)>;
    ServeWith<Adapter>(method, type, Handler([this, handler](Context* context, Args... args) {
                         return (static_cast<Service*>(this)->*handler)(context, args...);
                       }));
  }

 private:
  // A call that has ended before its handler: gRPC's reactor, with a status.
  template <typename Reactor>
  class RefusedCall final : public Reactor {
   public:
    RefusedCall(const absl::Status& status, CallContext* call) { this->Finish(ToGrpc(status, *call)); }
    void OnDone() override { delete this; }
  };

  template <template <typename, typename> typename Adapter, typename Reactor, typename... Args>
  void ServeWith(Method method, grpc::internal::RpcMethod::RpcType type,
                 std::function<Reactor*(Context*, Args...)> handler) {
    const auto checked = [this, method, handler = std::move(handler)](grpc::CallbackServerContext* context,
                                                                      Args... args) -> Reactor* {
      auto* const call = static_cast<CallContext*>(context);
      const absl::Status admitted = ToStatus([&] { return call->AdmitTo(&server_, method); });
      return admitted.ok() ? handler(call, args...) : new RefusedCall<Reactor>(admitted, call);
    };
    AddMethod(new grpc::internal::RpcServiceMethod(PathOf(method), type, nullptr));
    MarkMethodRawCallback(num_methods_++, new Adapter<grpc::ByteBuffer, grpc::ByteBuffer>(checked));
  }
  void ServeUnary(const MethodEntry& method);

  // Returns: the path of a method in HTTP/2. gRPC keeps the pointer, so that the text is never freed.
  static const char* PathOf(Method method);

  ServerContext& server_;
  int num_methods_ = 0;  // served
};

// The unary methods go to AggregationMethods; PutChunk, SubmitBatch, PutResultRange and the streaming methods have
// reactors of their own, and their messages are copied only once (codec/sliced_message.h). Borrows the registry and the
// methods. Otherwise as RpcService.
class AggregationService final : public RpcService {
 public:
  AggregationService(ServerContext* server, Registry* registry, AggregationMethods* methods);

  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutChunk(Context*, grpc::ByteBuffer* response);
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitBatch(Context*, grpc::ByteBuffer* response);
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutResultRange(Context*, grpc::ByteBuffer* response);
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response);
  // grpc_results.cc
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*);
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
