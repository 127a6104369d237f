// Who calls: from the credentials of a call to an identity.
#ifndef SPARSEAGG_SERVICE_AUTH_AUTHENTICATOR_H_
#define SPARSEAGG_SERVICE_AUTH_AUTHENTICATOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/auth/authorize.h"
#include "service/auth/jwt.h"
#include "service/auth/token_table.h"
#include "service/base/clock.h"
#include "service/base/read_file.h"

namespace sparseagg::service {

struct AuthOptions {
  std::string tokens_file;           // bearer tokens (TokenTable); empty: none
  bool trusts_certificates = false;  // clients have certificates of authorities that the server trusts
  JwtOptions jwt;                    // JSON Web Tokens (JwtVerifier)

  // Whether callers need a credential.
  bool IsRequired() const { return !tokens_file.empty() || trusts_certificates || !jwt.key_file.empty(); }
};

// What a transport knows about the sender of a call. Borrowed strings.
struct CallCredentials {
  std::vector<absl::string_view> authorization;      // the values of the header "authorization"
  std::vector<absl::string_view> certificate_names;  // the URIs of a verified client certificate
};

// Finds the identity of a caller, and reloads the credentials that the server takes.
//
//   Authenticator authenticator(&clock);
//   RETURN_IF_ERROR(authenticator.Configure(options));   // once, before calls come
//   ASSIGN_OR_RETURN(const Identity caller, authenticator.Authenticate(credentials));
//
// Without Configure, or with no credential configured, everybody is an admin of the default tenant.
// Thread-safe, except for Configure.
class Authenticator {
 public:
  explicit Authenticator(const Clock* clock) : clock_(*clock) {}  // borrowed

  // Errors: a file cannot be read, or is malformed; an option of JSON Web Tokens is missing or wrong.
  absl::Status Configure(AuthOptions options);
  // Whether callers need a credential.
  bool IsRequired() const { return options_.IsRequired(); }

  // Returns: the identity that the token gives; without a token, the one of the certificate.
  // Errors: UNAUTHENTICATED: no credential, an unknown one or an expired one. A token that is sent must be valid, also
  // where the certificate would be enough.
  absl::StatusOr<Identity> Authenticate(const CallCredentials& credentials) const;

  // Reads the files again that have changed. After an error, what was read before stays in use, and the log has an
  // error. From one thread at a time.
  void Reload();
  // Of the tokens and of the key of JSON Web Tokens. read_at 0: there is no such file.
  const ReloadState& tokens_state() const { return tokens_state_; }
  const ReloadState& jwt_state() const { return jwt_state_; }

 private:
  absl::Status ReadTokens();
  absl::Status ReadJwtKey();
  absl::StatusOr<Identity> AuthenticateToken(absl::string_view token) const;

  AuthOptions options_;
  const Clock& clock_;
  std::optional<FileVersion> tokens_version_;
  std::optional<FileVersion> jwt_version_;
  ReloadState tokens_state_;
  ReloadState jwt_state_;
  mutable Mutex mu_;
  std::shared_ptr<const TokenTable> tokens_ ABSL_GUARDED_BY(mu_);  // null without a file
  std::shared_ptr<const JwtVerifier> jwt_ ABSL_GUARDED_BY(mu_);    // the same
};

// Returns: the identity that a certificate's URI names, "sparseagg://TENANT/ROLE" or "sparseagg://TENANT/ROLE/NAME".
// Errors: UNAUTHENTICATED: none of `uris` is such a name, or more than one.
absl::StatusOr<Identity> IdentityOfCertificate(const std::vector<absl::string_view>& uris);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_AUTHENTICATOR_H_
