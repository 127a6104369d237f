// gRPC's context of a call, with the caller.
#ifndef SPARSEAGG_SERVICE_RPC_CALL_CONTEXT_H_
#define SPARSEAGG_SERVICE_RPC_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/status.h"
#include "service/auth/authorize.h"
#include "service/auth/identity.h"
#include "service/server_context.h"

namespace sparseagg::service {

// A call: what gRPC knows about it, and who calls.
//
// Life cycle: gRPC makes it (CallContexts); AggregationService calls Admit before the handler; all other members follow
// a successful Admit, from any thread, and change nothing.
class CallContext final : public grpc::CallbackServerContext {
 public:
  // Finds out who calls, and decides whether the caller may call `method` at all.
  // Errors: UNAUTHENTICATED, PERMISSION_DENIED; logged and counted. INVALID_ARGUMENT: a malformed tenant.
  absl::Status Admit(ServerContext* server, Method method);

  // Whose rounds the call may see is `caller().tenant`.
  const Identity& caller() const { return caller_; }
  // Whether the caller has shown a credential. Otherwise the server believes everybody.
  bool is_authenticated() const { return server_->authenticator.IsRequired(); }

  // Checks that the caller may send or ask for a submission of `*client_id`, and replaces an empty one by the name of a
  // client's credential.
  // Errors: PERMISSION_DENIED; logged and counted.
  absl::Status ResolveClientId(std::string* client_id) const;
  // Checks that the caller may create tasks of `*owner`, and replaces an empty one by the name of the credential.
  // Errors: as of ResolveClientId.
  absl::Status ResolveOwner(std::string* owner) const;
  // ResolveClientId for a message with the field client_id.
  template <typename Request>
  absl::Status ResolveClientOf(Request* request) const {
    return ResolveClientId(request->mutable_client_id());
  }

 private:
  absl::Status Deny(const absl::Status& status) const;

  ServerContext* server_ = nullptr;
  Method method_ = Method::kGetServerInfo;
  Identity caller_;
};

// Makes the contexts of all calls. Given to the builder of the server that serves AggregationService.
class CallContexts final : public grpc::ContextAllocator {
 public:
  grpc::CallbackServerContext* NewCallbackServerContext() override { return new CallContext; }
  // gRPC 1.51 passes contexts here that it has made itself, for calls of unknown methods, and deletes those afterwards.
  void Release(grpc::CallbackServerContext* context) override { delete dynamic_cast<CallContext*>(context); }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_CALL_CONTEXT_H_
