// What the gRPC services of this server have in common.
#ifndef SPARSEAGG_SERVICE_GRPC_RPC_SERVICE_H_
#define SPARSEAGG_SERVICE_GRPC_RPC_SERVICE_H_

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "service/auth/authorize.h"
#include "service/grpc/call_context.h"
#include "service/grpc/call_errors.h"
#include "service/handlers/methods.h"
#include "service/server_context.h"

namespace sparseagg::service {

// A service as gRPC calls it: it registers the handlers of the methods, and checks the caller before each.
//
// gRPC calls a handler on one of its own threads, where it must not block. A handler returns a reactor (call_reactor.h,
// grpc_unary_call.h), on which gRPC reports the rest of the call. It runs only for callers that may call its method
// (CallContext::AdmitTo). Every method gets its message unparsed, since the server bounds the memory of the parsed
// message before it parses (codec/parse.h).
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
    explicit RefusedCall(const absl::Status& status) { this->Finish(ToGrpc(status)); }
    void OnDone() override { delete this; }
  };

  template <template <typename, typename> typename Adapter, typename Reactor, typename... Args>
  void ServeWith(Method method, grpc::internal::RpcMethod::RpcType type,
                 std::function<Reactor*(Context*, Args...)> handler) {
    const auto checked = [this, method, handler = std::move(handler)](grpc::CallbackServerContext* context,
                                                                      Args... args) -> Reactor* {
      auto* const call = static_cast<CallContext*>(context);
      const absl::Status admitted = ToStatus([&] { return call->AdmitTo(&server_, method); });
      return admitted.ok() ? handler(call, args...) : new RefusedCall<Reactor>(admitted);
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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_RPC_SERVICE_H_
