#include "service/auth/authenticator.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kBearer = "Bearer ";
constexpr absl::string_view kScheme = "sparseagg://";

}  // namespace

absl::Status Authenticator::Configure(AuthOptions options) {
  options_ = std::move(options);
  if (options_.tokens_file.empty()) return absl::OkStatus();
  version_.emplace(options_.tokens_file);
  version_->HasChanged();
  absl::StatusOr<TokenTable> tokens = TokenTable::Read(options_.tokens_file);
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(), absl::StrCat("--tokens-file: ", tokens.status().message()));
  }
  Log(LogLevel::kInfo, "tokens", {{"path", options_.tokens_file}, {"count", tokens->size()}});
  MutexLock lock(&mu_);
  tokens_ = std::make_shared<const TokenTable>(*std::move(tokens));
  return absl::OkStatus();
}

void Authenticator::Reload() {
  if (!version_.has_value() || !version_->HasChanged()) return;
  absl::StatusOr<TokenTable> tokens = TokenTable::Read(options_.tokens_file);
  if (!tokens.ok()) {
    Log(LogLevel::kError, "tokens_not_reloaded",
        {{"reason", tokens.status().message()}, {"effect", "the earlier tokens stay valid"}});
    return;
  }
  Log(LogLevel::kInfo, "tokens", {{"path", options_.tokens_file}, {"count", tokens->size()}});
  auto table = std::make_shared<const TokenTable>(*std::move(tokens));
  MutexLock lock(&mu_);
  tokens_.swap(table);
}

absl::StatusOr<Identity> Authenticator::Authenticate(const CallCredentials& credentials) const {
  if (!IsRequired()) return Identity{};
  if (credentials.authorization.empty() && options_.trusts_certificates) {
    return IdentityOfCertificate(credentials.certificate_names);
  }
  if (credentials.authorization.size() != 1) {
    return absl::UnauthenticatedError(absl::StrCat("the call has ", credentials.authorization.size(),
                                                   " headers 'authorization'; one with 'Bearer TOKEN' is needed"));
  }
  absl::string_view token = credentials.authorization.front();
  if (!absl::StartsWithIgnoreCase(token, kBearer)) {
    return absl::UnauthenticatedError("the header 'authorization' is not 'Bearer TOKEN'");
  }
  token.remove_prefix(kBearer.size());
  std::shared_ptr<const TokenTable> tokens;
  {
    MutexLock lock(&mu_);
    tokens = tokens_;
  }
  if (tokens == nullptr) return absl::UnauthenticatedError("the server takes no tokens, but client certificates");
  return tokens->Find(token, clock_.WallTime());
}

absl::StatusOr<Identity> IdentityOfCertificate(const std::vector<absl::string_view>& uris) {
  std::vector<absl::string_view> names;
  for (absl::string_view uri : uris) {
    if (absl::ConsumePrefix(&uri, kScheme)) names.push_back(uri);
  }
  if (names.size() != 1) {
    return absl::UnauthenticatedError(
        absl::StrCat("the client certificate has ", names.size(),
                     " URI names of the form sparseagg://TENANT/ROLE/NAME; one is needed"));
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(names.front(), '/');
  if (parts.size() < 2 || parts.size() > 3) {
    return absl::UnauthenticatedError("the client certificate's URI name is not sparseagg://TENANT/ROLE/NAME");
  }
  absl::StatusOr<Identity> identity = ParseIdentity(parts[0], parts[1], parts.size() == 3 ? parts[2] : "");
  if (!identity.ok()) {
    return absl::UnauthenticatedError(absl::StrCat("the client certificate's URI name: ", identity.status().message()));
  }
  return identity;
}

}  // namespace sparseagg::service
