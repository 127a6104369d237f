// gRPC's context of a call, with the caller.
#ifndef SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_
#define SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/handlers/caller.h"
#include "service/server_context.h"

namespace sparseagg::service {

// A call: what gRPC knows about it, and who calls.
//
// Life cycle: gRPC makes it (CallContexts); AggregationService calls AdmitTo before the handler.
class CallContext final : public grpc::CallbackServerContext, public Caller {
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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_CALL_CONTEXT_H_
