// The submissions of a round as their clients have sent them, for those who check its certificate.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_BUNDLE_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_BUNDLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

struct BundleChunk {
  std::string client_id;
  std::string submission_id;
  std::string bytes;  // a v1.UpdateChunk as its client has sent it
  bool last = false;
  std::optional<double> client_weight;
  std::string leaf;  // in the last chunk
};

struct BundlePage {
  std::vector<BundleChunk> chunks;
  std::string next_page_token;  // empty on the last page
};

// Returns: chunks of the submissions from the token on; from the first one on if the token is empty. At least one,
// unless the round has no submissions, and then as many as fit `max_bytes`.
// Errors: FAILED_PRECONDITION: the spec does not allow it, or the round is not DONE. INVALID_ARGUMENT: not a token of
// this round. NOT_FOUND: the round was deleted meanwhile. Blocks: for reads of the disk.
absl::StatusOr<BundlePage> ReadBundle(const Round& round, uint64_t max_bytes, absl::string_view page_token);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_BUNDLE_H_
