#include "service/server_context.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg::service {

absl::Status RemoteCaller::Admit(ServerContext* server, Method method, const CallCredentials& credentials,
                                 const std::vector<absl::string_view>& tenants) {
  server_ = server;
  method_ = method;
  is_authenticated_ = server->authenticator.IsRequired();
  if (is_authenticated_) {
    absl::StatusOr<Identity> identity = server->authenticator.Authenticate(credentials);
    if (!identity.ok()) return Deny(identity.status());
    identity_ = *std::move(identity);
  }
  if (tenants.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the call has ", tenants.size(), " headers '", kTenantHeader, "'; one is allowed"));
  }
  const std::optional<absl::string_view> tenant = tenants.empty() ? std::nullopt : std::optional(tenants.front());
  if (!is_authenticated_) {
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

absl::Status RemoteCaller::Deny(const absl::Status& status) const {
  const bool is_known = !absl::IsUnauthenticated(status);
  server_->metrics.CountDenied(status);
  server_->audit.Denied(Name(method_), is_known ? identity_.ToString() : "", PeerName(), status);
  return status;
}

}  // namespace sparseagg::service
