// JSON Web Tokens (RFC 7519) of an issuer that the server trusts.
#ifndef SPARSEAGG_SERVICE_AUTH_JWT_H_
#define SPARSEAGG_SERVICE_AUTH_JWT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/auth/authorize.h"

namespace sparseagg::service {

struct JwtOptions {
  std::string key_file;   // PEM file of the issuer's public key; empty: no such tokens
  std::string algorithm;  // "RS256", "ES256" or "EdDSA"; a token of another one is refused
  std::string issuer;     // the claim iss
  std::string audience;   // the claim aud, or one of its values
};

// Verifies tokens with one public key. Immutable, and so thread-safe.
//
// The algorithm is the server's choice and never the token's: a token that says "none", or an HMAC with the public key
// as its secret, is refused. The claims iss, aud and exp are required, nbf counts where there is one. The claims
// tenant, role and sub (the client's name; without it the token may use any client id) make the identity. A claim of a
// wrong type is refused, also null.
class JwtVerifier {
 public:
  // Errors: INVALID_ARGUMENT: no public key of the algorithm in the file, or an empty or unknown option; otherwise of
  // the file system.
  static absl::StatusOr<std::shared_ptr<const JwtVerifier>> Load(const JwtOptions& options);
  ~JwtVerifier();

  // Returns: whether a bearer token has the form of a JSON Web Token, which other tokens never have.
  static bool HasForm(absl::string_view token);

  // Returns: the identity that the token gives at `now`.
  // Errors: UNAUTHENTICATED; the message shows no part of the token.
  absl::StatusOr<Identity> Verify(absl::string_view token, absl::Time now) const;

 private:
  struct Key;
  JwtVerifier(const JwtOptions& options, std::unique_ptr<Key> key);
  // Checks the signature of `signed_part`.
  bool IsSigned(absl::string_view signed_part, const std::string& signature) const;

  const JwtOptions options_;
  const std::unique_ptr<Key> key_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_JWT_H_
