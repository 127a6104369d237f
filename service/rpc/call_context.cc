#include "service/rpc/call_context.h"

#include <grpc/grpc_security_constants.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"

namespace sparseagg::service {
namespace {

absl::string_view ToView(const grpc::string_ref& text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CallContext::AdmitTo(ServerContext* server, Method method) {
  ++server->rpc_calls;
  counted_by_ = server;
  CallCredentials credentials;
  if (!server->authenticator.IsRequired()) return Admit(server, method, credentials, std::nullopt);
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
  if (metadata.count(kTenantHeader) > 1) {
    return absl::InvalidArgumentError(absl::StrCat("the call has more than one header '", kTenantHeader, "'"));
  }
  const auto tenant = metadata.find(kTenantHeader);
  return Admit(server, method, credentials,
               tenant == metadata.end() ? std::nullopt : std::optional(ToView(tenant->second)));
}

absl::string_view CallContext::Traceparent() const {
  const auto& metadata = client_metadata();
  const auto trace = metadata.find("traceparent");
  return trace == metadata.end() ? absl::string_view() : ToView(trace->second);
}

}  // namespace sparseagg::service
