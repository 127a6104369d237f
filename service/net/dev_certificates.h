// Certificates for trying TLS on one machine.
#ifndef SPARSEAGG_SERVICE_NET_DEV_CERTIFICATES_H_
#define SPARSEAGG_SERVICE_NET_DEV_CERTIFICATES_H_

#include <string>

#include "absl/status/status.h"

namespace sparseagg::service {

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

#endif  // SPARSEAGG_SERVICE_NET_DEV_CERTIFICATES_H_
