// The Ed25519 key that signs certificates.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_SIGNING_KEY_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_SIGNING_KEY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// An immutable private key, and so thread-safe.
class SigningKey {
 public:
  // Errors: INVALID_ARGUMENT: the file has no Ed25519 private key in PEM without a password; otherwise of the file
  // system. The message names the file and shows nothing of it.
  static absl::StatusOr<std::shared_ptr<const SigningKey>> Load(const std::string& path);
  ~SigningKey();

  // Returns: SHA-256 of the 32 bytes of the public key, in hexadecimal digits.
  const std::string& id() const { return id_; }
  // Returns: the signature (RFC 8032), 64 bytes. Deterministic. Errors: INTERNAL: OpenSSL does not sign.
  absl::StatusOr<std::string> Sign(absl::string_view message) const;

 private:
  struct Key;
  SigningKey(std::unique_ptr<Key> key, std::string id);
  const std::unique_ptr<Key> key_;
  const std::string id_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_SIGNING_KEY_H_
