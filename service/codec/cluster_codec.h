// The servers of a cluster's round on the wire.
#ifndef SPARSEAGG_SERVICE_CODEC_CLUSTER_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_CLUSTER_CODEC_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/rounds/round_config.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

inline constexpr uint64_t kMaxServers = 1024;  // of a cluster's round

// Returns: INVALID_ARGUMENT for a cluster of another number of servers.
absl::Status ServersError(uint64_t number);

// Decodes and checks the servers that clients are sent to, so that answers have no other address than a well-formed one
// of the round's coordinator. Errors: INVALID_ARGUMENT; the message names the server.
absl::StatusOr<HomeServers> DecodeCluster(const v1::ClusterSpec& spec);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_CLUSTER_CODEC_H_
