// Whether this machine knows localhost.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_LOCALHOST_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_LOCALHOST_H_

#include <netdb.h>

namespace sparseagg::service {

// Returns: false on a machine without /etc/hosts where no name server knows the name either.
inline bool KnowsLocalhost() {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_LOCALHOST_H_
