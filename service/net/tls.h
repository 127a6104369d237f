// TLS: the certificates of the server, and the authorities of its clients.
#ifndef SPARSEAGG_SERVICE_NET_TLS_H_
#define SPARSEAGG_SERVICE_NET_TLS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/base/read_file.h"

namespace sparseagg::service {

// Paths of PEM files.
struct TlsOptions {
  std::string certificate;  // the server's, then those of its issuers up to the root; empty: no TLS
  std::string key;          // the certificate's private key
  std::string client_ca;    // authorities of client certificates, which every client must have then; empty: none needed

  bool IsEnabled() const { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

// The contents of those files.
struct TlsPem {
  std::string certificate;
  std::string key;
  std::string client_ca;
  absl::Time certificate_end;  // of the first certificate to end
  absl::Time client_ca_end;    // the same
};

// The credentials of a gRPC server that takes its certificates anew from their files when the files change. Connections
// keep what they began with; new ones get the new certificates.
//
//   ASSIGN_OR_RETURN(const std::shared_ptr<TlsCredentials> tls, TlsCredentials::Load(options, &clock));
//   builder.AddListeningPort(address, tls);
//   tls->Reload();  // from time to time
//
// For one listening port. Thread-safe.
//
// gRPC's FileWatcherCertificateProvider does not serve: it gives up the certificate in use when it finds a key that
// does not match, as between the writing of two files.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  // Errors: INVALID_ARGUMENT: a file has no certificate or no key, or the two do not match. Otherwise of the file
  // system. The message has the flag and the path.
  static absl::StatusOr<std::shared_ptr<TlsCredentials>> Load(const TlsOptions& options, const Clock* clock);
  ~TlsCredentials() override;

  // Reads the files if one of them has changed. After an error, the earlier certificates stay in use, the log has an
  // error. From one thread at a time.
  void Reload();

  // Returns: the certificates in use, for other transports. A Reload that takes new ones makes another object.
  std::shared_ptr<const TlsPem> pem() const;
  const ReloadState& state() const { return state_; }

  // Required by gRPC's interface. Callers are authenticated by Authenticator.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  TlsCredentials(const TlsOptions& options, const Clock* clock);
  absl::StatusOr<TlsPem> Read() const;
  int AddPortToServer(const std::string& address, grpc_server* server) override;
  // gRPC asks before every handshake whether the certificates have changed.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config);

  const TlsOptions options_;
  const Clock& clock_;
  grpc_server_credentials* credentials_ = nullptr;
  FileVersion certificate_version_;
  FileVersion key_version_;
  FileVersion client_ca_version_;
  ReloadState state_;
  mutable Mutex mu_;
  std::shared_ptr<const TlsPem> pem_ ABSL_GUARDED_BY(mu_);
  bool is_new_ ABSL_GUARDED_BY(mu_) = true;  // gRPC does not have pem_ yet
};

// Makes a certificate authority and certificates of it in a folder, for a year, unless the folder has a ca.pem already:
//
//   ca.pem                              for clients, to check the server (and for --tls-client-ca)
//   server.pem, server.key              for localhost, 127.0.0.1, ::1, this machine's name, and the host of `address`
//   admin.pem, admin.key, …             one client certificate for each role, named sparseagg://default/ROLE/dev
//
// Keys are readable for their owner alone. The authority's own key is thrown away: nobody can make another certificate.
// Errors: of the file system; INTERNAL if OpenSSL fails.
absl::Status MakeDevCertificates(const std::string& folder, const std::string& address);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_TLS_H_
