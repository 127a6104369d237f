// What the gRPC services of this server have in common.
#ifndef SPARSEAGG_SERVICE_RPC_API_SERVICE_H_
#define SPARSEAGG_SERVICE_RPC_API_SERVICE_H_

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/auth/authorize.h"
#include "service/base/to_status.h"
#include "service/rpc/call_context.h"
#include "service/rpc/call_errors.h"
#include "service/server_context.h"

namespace sparseagg::service {

class AnswerReactor;

// The base of a service: it registers the handlers of the methods, checks the caller before each, and runs the work of
// unary calls.
//
// gRPC calls a handler on one of its own threads, where it must not block: a handler answers at once only if the work
// is short, otherwise it posts the work to the worker pool. A handler returns a reactor (call_reactor.h), on which gRPC
// reports the rest of the call.
//
// A handler runs only for callers that may call its method (CallContext::Admit). Every method gets its message
// unparsed, since the server bounds the memory of the parsed message before it parses (codec/parse.h).
//
// Owned by the server, which outlives all calls. Borrows the server context. Thread-safe. Requires: the builder of the
// server has a CallContexts.
class ApiService : public grpc::Service {
 public:
  using Context = CallContext;
  using Unary = grpc::ServerUnaryReactor;

  ServerContext& context() { return server_; }
  // Errors: RESOURCE_EXHAUSTED if a message of `bytes` exceeds max_message_bytes.
  absl::Status CheckMessageSize(uint64_t bytes) const;
  // Returns: the size of a result page for a request of `asked` bytes (0: the default), within max_page_bytes.
  uint64_t PageBytes(uint64_t asked) const;

 protected:
  explicit ApiService(ServerContext* server) : server_(*server) {}

  // Adds a method. `Adapter`: gRPC's for methods of `type`. `handler`: a member of `Service`, which is derived from
  // this.
  template <template <typename, typename> typename Adapter, typename Service, typename Reactor, typename... Args>
  void Serve(Method method, grpc::internal::RpcMethod::RpcType type, Reactor* (Service::*handler)(Context*, Args...)) {
    const auto checked = [this, method, handler](grpc::CallbackServerContext* context, Args... args) -> Reactor* {
      auto* const call = static_cast<CallContext*>(context);
      const absl::Status admitted = ToStatus([&] { return call->Admit(&server_, method); });
      if (!admitted.ok()) return new RefusedCall<Reactor>(admitted);
      return (static_cast<Service*>(this)->*handler)(call, args...);
    };
    AddMethod(new grpc::internal::RpcServiceMethod(PathOf(method), type, nullptr));
    MarkMethodRawCallback(num_methods_++, new Adapter<grpc::ByteBuffer, grpc::ByteBuffer>(checked));
  }
  template <typename Service, typename... Args>
  void ServeUnary(Method method, Unary* (Service::*handler)(Context*, Args...)) {
    Serve<grpc::internal::CallbackUnaryHandler>(method, grpc::internal::RpcMethod::NORMAL_RPC, handler);
  }

  // A checked call whose response needs a reservation of in-flight memory.
  struct PlannedAnswer {
    uint64_t max_bytes;                    // of the response
    std::function<absl::Status()> answer;  // does the work of the call, and serializes the response
  };

  // Runs `work` and finishes the call with the status that it returns: on the worker pool, or before the return, for
  // work that is short.
  Unary* OnPool(Context* context, std::function<absl::Status()> work);
  Unary* AtOnce(Context* context, const std::function<absl::Status()>& work);
  // On the pool if the work waits for a disk, else at once.
  Unary* OnPoolIfStored(Context* context, std::function<absl::Status()> work);

  // The same for calls whose response may be large: runs `plan`, reserves in-flight memory and then runs the planned
  // answer. `plan` must not change anything: without memory the call is refused, and its client tries again.
  Unary* AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                      std::function<absl::StatusOr<PlannedAnswer>()> plan);
  Unary* AnswerAtOnce(Context* context, const std::function<absl::StatusOr<PlannedAnswer>()>& plan);

  ServerContext& server_;

 private:
  // A call that has ended before its handler: gRPC's reactor, with a status.
  template <typename Reactor>
  class RefusedCall final : public Reactor {
   public:
    explicit RefusedCall(const absl::Status& status) { this->Finish(ToGrpc(status)); }
    void OnDone() override { delete this; }
  };

  // Returns: the path of a method in HTTP/2. gRPC keeps the pointer, so that the text is never freed.
  static const char* PathOf(Method method);
  // `held_bytes`: memory that `planned` uses while it waits for the reservation.
  static void RunPlanned(AnswerReactor& reactor, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned);

  int num_methods_ = 0;  // served
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_API_SERVICE_H_
