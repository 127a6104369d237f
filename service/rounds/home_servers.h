// The servers of a cluster's round, and the home of each client among them.
#ifndef SPARSEAGG_SERVICE_ROUNDS_HOME_SERVERS_H_
#define SPARSEAGG_SERVICE_ROUNDS_HOME_SERVERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

struct HomeServer {
  std::string address;   // of gRPC
  std::string http_url;  // of the gateway; empty: it has none
};

// Immutable. Without servers, the round is this server's alone.
struct HomeServers {
  std::vector<HomeServer> servers;
  size_t index = 0;  // of this server

  // Errors: FAILED_PRECONDITION (HomeElsewhere): another server is the client's home.
  absl::Status CheckHome(absl::string_view client_id) const;
};

// Returns: the index of a client's home among `num_servers` servers: the one with the largest mix of index and hash of
// the id (rendezvous hashing). With one more server at the end, only the clients that this server gets have another
// home. The same in sparseagg/_internal/spec/bounds.py and in js/sparseagg.js. Requires: num_servers > 0.
size_t HomeOf(absl::string_view client_id, size_t num_servers);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_HOME_SERVERS_H_
