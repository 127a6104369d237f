#include "service/api/caller.h"

#include <utility>

#include "absl/status/statusor.h"
#include "host/base/status_macros.h"
#include "host/spec/ids.h"

namespace sparseagg::service {

absl::Status Caller::Admit(ServerContext* server, Method method, const CallCredentials& credentials,
                           std::optional<absl::string_view> tenant) {
  server_ = server;
  method_ = method;
  if (!is_authenticated()) return absl::OkStatus();
  absl::StatusOr<Identity> identity = server->authenticator.Authenticate(credentials);
  if (!identity.ok()) return Deny(identity.status());
  identity_ = *std::move(identity);
  Resource resource;
  resource.tenant = tenant;
  if (const absl::Status allowed = Authorize(identity_, method, resource); !allowed.ok()) return Deny(allowed);
  if (!tenant.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckName(*tenant, kTenantHeader));
  identity_.tenant = std::string(*tenant);
  return absl::OkStatus();
}

absl::Status Caller::ResolveClientId(std::string* client_id) const {
  if (client_id->empty() && identity_.role == Role::kClient) *client_id = identity_.name;
  const absl::Status allowed = Authorize(identity_, method_, {identity_.tenant, *client_id, std::nullopt});
  return allowed.ok() ? allowed : Deny(allowed);
}

absl::Status Caller::ResolveOwner(std::string* owner) const {
  if (owner->empty()) *owner = identity_.name;
  const absl::Status allowed = Authorize(identity_, method_, {identity_.tenant, std::nullopt, *owner});
  return allowed.ok() ? allowed : Deny(allowed);
}

absl::Status Caller::Deny(const absl::Status& status) const {
  const bool is_known = !absl::IsUnauthenticated(status);
  server_->metrics.CountDenied(status);
  server_->audit.Denied(Name(method_), is_known ? identity_.ToString() : "", PeerName(), status);
  return status;
}

}  // namespace sparseagg::service
