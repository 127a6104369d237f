// What a round has been asked to do.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/spec/spec.h"

namespace sparseagg::service {

// Immutable once its round is open; uploads share it.
struct RoundConfig {
  std::string id;  // empty: the private round of a one-shot call
  std::vector<TensorSpec> tensors;
  absl::flat_hash_map<std::string, size_t> tensor_index;
  uint64_t min_submissions = 0;
  uint64_t max_submissions = 0;                        // the round closes itself on reaching it; 0: it does not
  uint64_t submission_limit = 0;                       // of the server; 0: none
  uint64_t max_tuples_per_submission = 0;              // 0: none
  uint64_t max_bytes_per_submission = 0;               // decoded keys and values; 0: none
  absl::Duration deadline = absl::InfiniteDuration();  // from the creation
  absl::Duration result_ttl = absl::ZeroDuration();    // from the end
  std::string wire_spec;                               // the spec as its caller sent it; what makes two rounds the same

  // INVALID_ARGUMENT lists the known tensors.
  absl::StatusOr<size_t> FindTensor(absl::string_view name) const;
  // Whether the round keeps submissions until its end, since their order matters for some of its tensors.
  bool KeepsSubmissions() const;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_CONFIG_H_
