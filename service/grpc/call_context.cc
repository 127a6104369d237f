#include "service/grpc/call_context.h"

#include <grpc/grpc_security_constants.h>

#include <memory>
#include <string>
#include <vector>

#include "service/base/log.h"
#include "service/base/refusals.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  const std::string pushback = RetryPushbackMs(status);
  if (!pushback.empty()) context.AddTrailingMetadata(kPushbackMetadata, pushback);
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), ShortMessage(status), StatusDetails(status));
}

namespace {

absl::string_view ToView(const grpc::string_ref& text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CallContext::AdmitTo(ServerContext* server, Method method) {
  ++server->rpc_calls;
  counted_by_ = server;
  CallCredentials credentials;
  const auto& metadata = client_metadata();
  std::vector<absl::string_view> tenants;
  const auto named = metadata.equal_range(kTenantHeader);
  for (auto tenant = named.first; tenant != named.second; ++tenant) tenants.push_back(ToView(tenant->second));
  if (!server->authenticator.IsRequired()) return Admit(server, method, credentials, tenants);
  const auto tokens = metadata.equal_range("authorization");
  for (auto token = tokens.first; token != tokens.second; ++token) {
    credentials.authorization.push_back(ToView(token->second));
  }
  std::shared_ptr<const grpc::AuthContext> connection;  // owns the names
  if (credentials.authorization.empty()) connection = auth_context();
  if (connection != nullptr) {
    for (const grpc::string_ref& name : connection->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      credentials.certificate_names.push_back(ToView(name));
    }
  }
  return Admit(server, method, credentials, tenants);
}

absl::string_view CallContext::Traceparent() const {
  const auto& metadata = client_metadata();
  const auto trace = metadata.find("traceparent");
  return trace == metadata.end() ? absl::string_view() : ToView(trace->second);
}

void CallCanceller::Cancel() {
  MutexLock lock(&mu_);
  if (context_ == nullptr) return;
  context_->TryCancel();
  EndStuckConnectionLocked();
}

void CallCanceller::EndStuckConnection() {
  MutexLock lock(&mu_);
  if (context_ != nullptr) EndStuckConnectionLocked();
}

void CallCanceller::EndStuckConnectionLocked() {
  const int ended = server_.connections.EndStuck(peer_);
  if (ended == 0) return;
  server_.metrics.CountEndedConnections(ended);
  Log(LogLevel::kWarning, "connection_ended",
      {{"peer", peer_}, {"reason", "the peer reads almost nothing while other calls wait for memory"}});
}

void CallCanceller::Detach() {
  MutexLock lock(&mu_);
  context_ = nullptr;
}

}  // namespace sparseagg::service
