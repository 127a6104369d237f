// The Certifier of a server.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_OPENSSL_CERTIFIER_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_OPENSSL_CERTIFIER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/base/read_file.h"
#include "service/rounds/certifier.h"

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

// Signs with the key of a file. Reload follows a change of the file; what was signed before stays as it is.
class OpenSslCertifier final : public Certifier {
 public:
  // Errors: as of SigningKey::Load.
  static absl::StatusOr<std::unique_ptr<OpenSslCertifier>> Load(const std::string& path);

  // Reads the file again, if it has changed. A file that is no key is logged, and the key stays.
  void Reload();
  const ReloadState& state() const { return state_; }
  std::string key_id() const { return key()->id(); }

  absl::StatusOr<std::string> MakeSaltKey(absl::string_view tenant, absl::string_view id) const override;
  std::string MakeLeaf(absl::string_view salt_key, absl::string_view client_id, absl::string_view submission_id,
                       double weight, std::optional<uint64_t> base_version,
                       absl::Span<const TensorContent> tensors) const override;
  std::shared_ptr<const CertificateTree> MakeTree(absl::Span<const absl::string_view> leaves) const override;
  absl::StatusOr<IssuedCertificate> Certify(const RoundFacts& facts) const override;
  absl::StatusOr<std::string> Promise(const RoundConfig& config, absl::Time create_time,
                                      absl::string_view leaf) const override;

 private:
  explicit OpenSslCertifier(const std::string& path) : path_(path), version_(path) {}
  std::shared_ptr<const SigningKey> key() const {
    MutexLock lock(&mu_);
    return key_;
  }

  const std::string path_;
  ReloadState state_;
  mutable Mutex mu_;
  FileVersion version_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const SigningKey> key_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_OPENSSL_CERTIFIER_H_
