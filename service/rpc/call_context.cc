#include "service/rpc/call_context.h"

#include <grpc/grpc_security_constants.h>

#include "absl/strings/string_view.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// The header by which an admin acts in another tenant.
constexpr char kTenantHeader[] = "sparseagg-tenant";

absl::string_view ToView(const grpc::string_ref& text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CallContext::Admit(ServerContext* server, Method method) {
  server_ = server;
  method_ = method;
  if (!is_authenticated()) return absl::OkStatus();
  CallCredentials credentials;
  const auto& metadata = client_metadata();
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
  absl::StatusOr<Identity> caller = server->authenticator.Authenticate(credentials);
  if (!caller.ok()) return Deny(caller.status());
  caller_ = *std::move(caller);
  Resource resource;
  const auto tenant = metadata.find(kTenantHeader);
  if (tenant != metadata.end()) resource.tenant = ToView(tenant->second);
  if (const absl::Status allowed = Authorize(caller_, method, resource); !allowed.ok()) return Deny(allowed);
  if (!resource.tenant.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAuthName(*resource.tenant, kTenantHeader));
  caller_.tenant = std::string(*resource.tenant);
  return absl::OkStatus();
}

absl::Status CallContext::ResolveClientId(std::string* client_id) const {
  if (client_id->empty() && caller_.role == Role::kClient) *client_id = caller_.name;
  const absl::Status allowed = Authorize(caller_, method_, {caller_.tenant, *client_id, std::nullopt});
  return allowed.ok() ? allowed : Deny(allowed);
}

absl::Status CallContext::ResolveOwner(std::string* owner) const {
  if (owner->empty()) *owner = caller_.name;
  const absl::Status allowed = Authorize(caller_, method_, {caller_.tenant, std::nullopt, *owner});
  return allowed.ok() ? allowed : Deny(allowed);
}

absl::Status CallContext::Deny(const absl::Status& status) const {
  const bool is_known = !absl::IsUnauthenticated(status);
  server_->metrics.CountDenied(status);
  server_->audit.Denied(Name(method_), is_known ? caller_.ToString() : "", peer(), status);
  return status;
}

}  // namespace sparseagg::service
