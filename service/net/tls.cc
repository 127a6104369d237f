#include "service/net/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

Bio Open(const std::string& pem) { return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free}; }

// Never asks a terminal for the password of a key.
int NoPassword(char*, int, int, void*) { return 0; }

std::vector<Certificate> ParseCertificates(const std::string& pem) {
  std::vector<Certificate> found;
  const Bio bio = Open(pem);
  while (true) {
    Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, &NoPassword, nullptr), &X509_free);
    if (certificate == nullptr) break;
    found.push_back(std::move(certificate));
  }
  ERR_clear_error();  // the end of the file is an error
  return found;
}

absl::Time EndOf(const X509& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return absl::InfinitePast();
  return absl::FromTM(end, absl::UTCTimeZone());
}

// Returns: when the first of them ends.
absl::Time EndOf(const std::vector<Certificate>& certificates) {
  absl::Time end = absl::InfiniteFuture();
  for (const Certificate& each : certificates) end = std::min(end, EndOf(*each));
  return end;
}

absl::Status InFlag(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<std::string> ReadFlag(absl::string_view flag, const std::string& path, bool is_secret = false) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is missing: TLS needs --tls-certificate and --tls-key"));
  }
  absl::StatusOr<std::string> bytes = is_secret ? ReadSecretFile(path) : ReadFile(path);
  return bytes.ok() ? bytes : InFlag(flag, bytes.status());
}

}  // namespace

TlsCredentials::TlsCredentials(const TlsOptions& options, const Clock* clock)
    : options_(options),
      clock_(*clock),
      certificate_version_(options.certificate),
      key_version_(options.key),
      client_ca_version_(options.client_ca) {}

TlsCredentials::~TlsCredentials() {
  if (credentials_ != nullptr) grpc_server_credentials_release(credentials_);
}

absl::StatusOr<TlsPem> TlsCredentials::Read() const {
  TlsPem pem;
  ASSIGN_OR_RETURN(pem.certificate, ReadFlag("tls-certificate", options_.certificate));
  ASSIGN_OR_RETURN(pem.key, ReadFlag("tls-key", options_.key, /*is_secret=*/true));
  const std::vector<Certificate> chain = ParseCertificates(pem.certificate);
  if (chain.empty()) {
    return InFlag("tls-certificate",
                  absl::InvalidArgumentError(absl::StrCat(options_.certificate, " has no certificate in PEM")));
  }
  const Key key(PEM_read_bio_PrivateKey(Open(pem.key).get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free);
  const bool matches = key != nullptr && X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return InFlag("tls-key", absl::InvalidArgumentError(
                                 absl::StrCat(options_.key, " has no private key in PEM without a password")));
  }
  if (!matches) {
    return InFlag("tls-key", absl::InvalidArgumentError(absl::StrCat(
                                 options_.key, " is not the key of the first certificate in ", options_.certificate)));
  }
  if (!options_.client_ca.empty()) {
    ASSIGN_OR_RETURN(pem.client_ca, ReadFlag("tls-client-ca", options_.client_ca));
    const std::vector<Certificate> authorities = ParseCertificates(pem.client_ca);
    pem.client_ca_end = EndOf(authorities);
    if (authorities.empty()) {
      return InFlag("tls-client-ca",
                    absl::InvalidArgumentError(absl::StrCat(options_.client_ca, " has no certificate in PEM")));
    }
  }
  const absl::Time end = pem.certificate_end = EndOf(chain);
  const bool has_expired = end <= clock_.WallTime();
  Log(has_expired ? LogLevel::kError : LogLevel::kInfo, has_expired ? "certificate_expired" : "certificate",
      {{"path", options_.certificate},
       {"valid_until", absl::FormatTime(absl::RFC3339_sec, end, absl::UTCTimeZone())},
       {"client_ca", options_.client_ca}});
  return pem;
}

absl::StatusOr<std::shared_ptr<TlsCredentials>> TlsCredentials::Load(const TlsOptions& options, const Clock* clock) {
  std::shared_ptr<TlsCredentials> loaded(new TlsCredentials(options, clock));
  loaded->certificate_version_.HasChanged();
  loaded->key_version_.HasChanged();
  loaded->client_ca_version_.HasChanged();
  ASSIGN_OR_RETURN(TlsPem pem, loaded->Read());
  {
    MutexLock lock(&loaded->mu_);
    loaded->pem_ = std::make_shared<const TlsPem>(std::move(pem));
  }
  loaded->state_.Record(true);
  loaded->credentials_ =
      grpc_ssl_server_credentials_create_with_options(grpc_ssl_server_credentials_create_options_using_config_fetcher(
          options.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                    : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
          &TlsCredentials::Fetch, loaded.get()));
  if (loaded->credentials_ == nullptr) return absl::InternalError("gRPC takes no TLS credentials");
  return loaded;
}

void TlsCredentials::Reload() {
  // Each must look.
  const bool certificate = certificate_version_.HasChanged();
  const bool key = key_version_.HasChanged();
  const bool client_ca = client_ca_version_.HasChanged();
  if (!certificate && !key && !client_ca) return;
  absl::StatusOr<TlsPem> pem = Read();
  state_.Record(pem.ok());
  if (!pem.ok()) {
    Log(LogLevel::kError, "certificate_not_reloaded",
        {{"reason", pem.status().message()}, {"effect", "the earlier certificates stay in use"}});
    return;
  }
  MutexLock lock(&mu_);
  pem_ = std::make_shared<const TlsPem>(*std::move(pem));
  is_new_ = true;
}

std::shared_ptr<const TlsPem> TlsCredentials::pem() const {
  MutexLock lock(&mu_);
  return pem_;
}

int TlsCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  return grpc_server_add_http2_port(server, address.c_str(), credentials_);
}

grpc_ssl_certificate_config_reload_status TlsCredentials::Fetch(void* self,
                                                                grpc_ssl_server_certificate_config** config) {
  TlsCredentials& tls = *static_cast<TlsCredentials*>(self);
  MutexLock lock(&tls.mu_);
  if (!tls.is_new_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {tls.pem_->key.c_str(), tls.pem_->certificate.c_str()};
  // Workaround: gRPC 1.51 aborts without authorities of clients, also where it asks no client for a certificate. The
  // server's own certificate is then a placeholder. Remove with: a gRPC that takes null.
  const std::string& client_ca = tls.pem_->client_ca.empty() ? tls.pem_->certificate : tls.pem_->client_ca;
  *config = grpc_ssl_server_certificate_config_create(client_ca.c_str(), &pair, 1);
  tls.is_new_ = false;
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace sparseagg::service
