// The names of rounds, the servers of a cluster's round, and the decoded spec.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/spec/spec.h"
#include "service/auth/authorize.h"

namespace sparseagg::service {

// Returns: "rounds/ID".
std::string RoundName(absl::string_view id);
// Returns: the id in "rounds/ID". Errors: INVALID_ARGUMENT: not a round name.
absl::StatusOr<std::string> ParseRoundName(absl::string_view name);
// Of streams: "streams/ID".
inline constexpr char kStreamPrefix[] = "streams/";
std::string StreamName(absl::string_view id);
absl::StatusOr<std::string> ParseStreamName(absl::string_view name);

// Checks the reason that a caller gives for the end of a round or a task.
// Errors: INVALID_ARGUMENT: more than 1024 bytes.
absl::Status CheckReason(absl::string_view reason);

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

// What a version of a stream has beside its spec. docs/streams.md.
struct StreamPart {
  std::string id;            // of the stream
  uint64_t version = 0;      // that the round is, from 1 on
  bool has_factors = false;  // the table of staleness weights has others than 1: all tensors are weighted kByWeight
  std::shared_ptr<const struct RoundConfig> uploads;  // the config of the stream's uploads
};

// The configuration of one round. Made by DecodeRoundSpec; immutable once the round is open, and shared by its uploads.
struct RoundConfig {
  std::string tenant = std::string(kDefaultTenant);  // whose callers see the round
  std::string id;  // unique in the tenant; empty: the private round of a one-shot call
  std::vector<TensorSpec> tensors;
  absl::flat_hash_map<std::string, size_t> tensor_index;  // by name
  uint64_t min_submissions = 0;
  uint64_t max_submissions = 0;                        // the round closes when it has this many; 0: no such limit
  uint64_t submission_limit = 0;                       // the server's limit on submissions; 0: none
  uint64_t max_tuples_per_submission = 0;              // 0: none
  uint64_t max_bytes_per_submission = 0;               // decoded keys and values; 0: none
  bool keep_submissions = false;                       // as asked for; see KeepsSubmissions
  bool stays_open = false;                             // it does not close itself
  bool accepts_partials = false;                       // submissions may be partials
  absl::Duration deadline = absl::InfiniteDuration();  // from the creation of the round
  absl::Duration result_ttl = absl::ZeroDuration();    // from the end of the round
  bool has_certificate = false;                        // the round gets a signed certificate
  bool allows_export = false;       // coordinators may read the submissions of the round once it is DONE
  std::string leaf_salt_key;        // with has_certificate: secret of the salts; empty: Round::Open chooses one
  std::string release_id;           // of a private round, for its NoiseSource; Round::Open draws one for a new round
  HomeServers homes;                // the servers of the round; none: this one alone
  std::string wire_spec;            // serialised spec; equal for two requests of the same round
  bool takes_base_version = false;  // of a stream's uploads: they say what they were computed from
  std::shared_ptr<StreamPart> stream = nullptr;  // of a version of a stream; null: the round is none

  // Returns: the round's name in the log: the id, with "TENANT/" before it unless that is the default tenant.
  std::string LogName() const;
  // Returns: the index of the tensor. Errors: INVALID_ARGUMENT: no such tensor; the message lists the tensors.
  absl::StatusOr<size_t> FindTensor(absl::string_view name) const;
  // The same; an empty name stands for the only tensor. Errors: INVALID_ARGUMENT: also if there are several.
  absl::StatusOr<size_t> ChooseTensor(absl::string_view name) const;
  // Returns: true if Add may also merge pending updates of other submissions.
  bool MergesOnArrival() const;
  // Returns: whether the round keeps all submissions until it closes, because it is asked to, or because their order
  // matters for some tensor.
  bool KeepsSubmissions() const;
  // Returns: max_submissions; of a cluster's round, this server's share, which all servers together cannot exceed.
  uint64_t MaxShare() const { return max_submissions / std::max<size_t>(homes.servers.size(), 1); }
  // Returns: whether a tensor has bounds (TensorSpec::clip).
  bool HasClip() const;
  // Returns: whether the results are differentially private, so that numbers of submissions are secret.
  bool HasPrivacy() const { return !tensors.empty() && tensors.front().privacy.has_value(); }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_
