#include "service/handlers/caller.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/ids.h"

namespace sparseagg::service {

absl::Status Caller::Admit(ServerContext* server, Method method, const CallCredentials& credentials,
                           const std::vector<absl::string_view>& tenants) {
  server_ = server;
  method_ = method;
  if (is_authenticated()) {
    absl::StatusOr<Identity> identity = server->authenticator.Authenticate(credentials);
    if (!identity.ok()) return Deny(identity.status());
    identity_ = *std::move(identity);
  }
  if (tenants.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the call has ", tenants.size(), " headers '", kTenantHeader, "'; one is allowed"));
  }
  const std::optional<absl::string_view> tenant = tenants.empty() ? std::nullopt : std::optional(tenants.front());
  if (!is_authenticated()) {
    if (!tenant.has_value() || *tenant == identity_.tenant) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(kTenantHeader, " ", QuotedId(*tenant),
                                                   ": a server without credentials has no tenants; leave it out"));
  }
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
