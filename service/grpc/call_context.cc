#include "service/grpc/call_context.h"

#include <grpc/grpc_security_constants.h>

#include <memory>
#include <vector>

namespace sparseagg::service {
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

}  // namespace sparseagg::service
