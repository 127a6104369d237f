// A call of gRPC: its context with the caller, its statuses, and how it is cancelled.
#ifndef SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_
#define SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/handlers/caller.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Converts a status, with its StatusDetails. The codes have the same numbers. Cuts long messages, since clients accept
// 8 KiB of headers. Adds RetryPushbackMs to the call, as trailing metadata. Call it once a call.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context);

// A call: what gRPC knows about it, and who calls.
//
// Life cycle: gRPC makes it (CallContexts); AggregationService calls AdmitTo before the handler.
class CallContext final : public grpc::CallbackServerContext, public RemoteCaller {
 public:
  ~CallContext() override {
    if (counted_by_ != nullptr) --counted_by_->rpc_calls;
  }

  // Caller::Admit with the credentials of the call: its metadata, or the certificate of its connection.
  absl::Status AdmitTo(ServerContext* server, Method method);

  std::string PeerName() const override { return peer(); }
  absl::string_view Traceparent() const override;

 private:
  ServerContext* counted_by_ = nullptr;
};

// Makes the contexts of all calls. Given to the builder of the server that serves AggregationService.
class CallContexts final : public grpc::ContextAllocator {
 public:
  grpc::CallbackServerContext* NewCallbackServerContext() override { return new CallContext; }
  // gRPC 1.51 passes contexts here that it has made itself, for calls of unknown methods, and deletes those afterwards.
  void Release(grpc::CallbackServerContext* context) override { delete dynamic_cast<CallContext*>(context); }
};

// Cancels one call from other threads, for as long as the call lasts.
//
// Shared by the reactor and by the reclaim callbacks of the call's reservations, which may outlive the call. The
// reactor calls Detach from OnDone; afterwards the other members do nothing.
//
// Thread-safe.
class CallCanceller {
 public:
  CallCanceller(ServerContext* server, grpc::CallbackServerContext* context)
      : server_(*server), peer_(context->peer()), context_(context) {}

  const std::string& peer() const { return peer_; }

  // Cancels the call, and ends its connection if the peer hardly reads. The reclaim callback for a page or a response
  // that waits for its reader: no status can reach the client past those bytes. May be called again and again.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the connection of the call if the peer hardly reads (ConnectionTable::EndStuck). May be called again and
  // again.
  //
  // Workaround: gRPC 1.51 keeps the bytes of a cancelled call until the peer has read them, and cannot end a
  // connection. Remove with: a gRPC that frees those bytes, or has an API to end a server's connection.
  void EndStuckConnection() ABSL_LOCKS_EXCLUDED(mu_);

  // Forgets the call. From OnDone, after which gRPC destroys the context.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void EndStuckConnectionLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ServerContext& server_;
  // Workaround: gRPC 1.51 forgets the peer of a cancelled call. Remove with: a gRPC whose peer() outlasts cancellation.
  const std::string peer_;
  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);  // null: the call is over
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_
