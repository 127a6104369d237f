#include "service/auth/authenticator.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kBearer = "Bearer ";
constexpr absl::string_view kScheme = "sparseagg://";

}  // namespace

absl::Status Authenticator::Configure(AuthOptions options) {
  options_ = std::move(options);
  const JwtOptions& jwt = options_.jwt;
  if (jwt.key_file.empty() && !(jwt.algorithm.empty() && jwt.issuer.empty() && jwt.audience.empty())) {
    return absl::InvalidArgumentError("--jwt-key is missing");
  }
  if (!options_.tokens_file.empty()) {
    tokens_version_.emplace(options_.tokens_file);
    tokens_version_->HasChanged();
    RETURN_IF_ERROR(ReadTokens());
    tokens_state_.Record(true);
  }
  if (!jwt.key_file.empty()) {
    jwt_version_.emplace(jwt.key_file);
    jwt_version_->HasChanged();
    RETURN_IF_ERROR(ReadJwtKey());
    jwt_state_.Record(true);
  }
  return absl::OkStatus();
}

absl::Status Authenticator::ReadTokens() {
  absl::StatusOr<TokenTable> tokens = TokenTable::Read(options_.tokens_file);
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(), absl::StrCat("--tokens-file: ", tokens.status().message()));
  }
  Log(LogLevel::kInfo, "tokens", {{"path", options_.tokens_file}, {"count", tokens->size()}});
  auto table = std::make_shared<const TokenTable>(*std::move(tokens));
  MutexLock lock(&mu_);
  tokens_.swap(table);
  return absl::OkStatus();
}

absl::Status Authenticator::ReadJwtKey() {
  ASSIGN_OR_RETURN(std::shared_ptr<const JwtVerifier> jwt, JwtVerifier::Load(options_.jwt));
  Log(LogLevel::kInfo, "jwt_key", {{"path", options_.jwt.key_file}, {"issuer", options_.jwt.issuer}});
  MutexLock lock(&mu_);
  jwt_.swap(jwt);
  return absl::OkStatus();
}

void Authenticator::Reload() {
  const auto reload = [](std::optional<FileVersion>& version, ReloadState& state, const auto& read) {
    if (!version.has_value() || !version->HasChanged()) return;
    const absl::Status status = read();
    state.Record(status.ok());
    if (!status.ok()) {
      Log(LogLevel::kError, "credentials_not_reloaded",
          {{"reason", status.message()}, {"effect", "what was read before stays in use"}});
    }
  };
  reload(tokens_version_, tokens_state_, [this] { return ReadTokens(); });
  reload(jwt_version_, jwt_state_, [this] { return ReadJwtKey(); });
}

absl::StatusOr<Identity> Authenticator::Authenticate(const CallCredentials& credentials) const {
  if (!IsRequired()) return Identity{};
  if (credentials.authorization.empty() && options_.trusts_certificates) {
    return IdentityOfCertificate(credentials.certificate_names);
  }
  if (const size_t found = credentials.authorization.size(); found != 1) {
    const absl::Status status = absl::UnauthenticatedError(
        absl::StrCat("the call has ", found, " headers 'authorization'; one with 'Bearer TOKEN' is needed"));
    return found == 0 ? WithReason(status, "CREDENTIAL_MISSING") : status;
  }
  absl::string_view token = credentials.authorization.front();
  if (!absl::StartsWithIgnoreCase(token, kBearer)) {
    return absl::UnauthenticatedError("the header 'authorization' is not 'Bearer TOKEN'");
  }
  token.remove_prefix(kBearer.size());
  return AuthenticateToken(token);
}

absl::StatusOr<Identity> Authenticator::AuthenticateToken(absl::string_view token) const {
  std::shared_ptr<const TokenTable> tokens;
  std::shared_ptr<const JwtVerifier> jwt;
  {
    MutexLock lock(&mu_);
    tokens = tokens_;
    jwt = jwt_;
  }
  if (jwt != nullptr && (tokens == nullptr || JwtVerifier::HasForm(token))) {
    return jwt->Verify(token, clock_.WallTime());
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
  const std::optional<absl::string_view> name = parts.size() == 3 ? std::optional(parts[2]) : std::nullopt;
  absl::StatusOr<Identity> identity = ParseIdentity(parts[0], parts[1], name);
  if (!identity.ok()) {
    return absl::UnauthenticatedError(absl::StrCat("the client certificate's URI name: ", identity.status().message()));
  }
  return identity;
}

}  // namespace sparseagg::service
