#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/streams/stream.h"

namespace sparseagg::service {
namespace {

// So that a version's name is a round's, whatever its number.
constexpr size_t kMaxIdBytes = 107;

absl::Status Invalid(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", problem));
}

}  // namespace

bool StreamConfig::HasFactors() const {
  return std::any_of(staleness_weights.begin(), staleness_weights.end(), [](double weight) { return weight != 1.0; });
}

absl::Status StreamConfig::Check() const {
  if (round.id.size() > kMaxIdBytes) {
    return Invalid("stream_id", absl::StrCat("has ", round.id.size(), " bytes; up to ", kMaxIdBytes, " are allowed"));
  }
  if (buffer == 0) return Invalid("buffer", "is 0; a version needs at least one commit");
  if (round.submission_limit != 0 && buffer > round.submission_limit) {
    return Invalid("buffer",
                   absl::StrCat("is ", buffer, ", above the server's max_submissions ", round.submission_limit));
  }
  if (round.min_submissions > buffer) {
    return Invalid("round.min_submissions", absl::StrCat("is ", round.min_submissions, ", above the buffer ", buffer));
  }
  if (round.deadline != absl::InfiniteDuration()) {
    return Invalid("round.deadline", "is not of streams, whose field is max_interval");
  }
  if (round.HasPrivacy()) return Invalid("round.privacy", "is not supported in streams");
  if (round.accepts_partials) return Invalid("round.accept_partials", "is not supported in streams");
  if (round.stays_open) return Invalid("round.stay_open", "is not of streams");
  if (!round.homes.servers.empty()) return Invalid("round.cluster", "is not of streams, which one server has");
  if (max_interval <= absl::ZeroDuration()) return Invalid("max_interval", "is not positive");
  for (size_t i = 0; i < staleness_weights.size(); ++i) {
    const double weight = staleness_weights[i];
    if (weight >= 0.0 && weight <= 1.0) continue;
    return Invalid(absl::StrCat("staleness_weights[", i, "]"), absl::StrCat("is ", weight, ", not within 0 and 1"));
  }
  for (const TensorSpec& tensor : round.tensors) {
    const Op op = tensor.aggregation.op;
    if (tensor.aggregation.min_contributors > 1 && !one_per_client) {
      return Invalid("round.min_contributors", absl::StrCat(Quoted(tensor),
                                                            ": needs one_per_client, as a client with "
                                                            "two commits would count twice"));
    }
    if (!HasFactors()) continue;
    if (op == Op::kUnion || op == Op::kMin || op == Op::kMax) {
      return Invalid("staleness_weights",
                     absl::StrCat(Quoted(tensor), ": the op ", Name(op), " ignores weights, so that all must be 1"));
    }
    if (!IsFloat(tensor.dtype)) {
      return Invalid("staleness_weights", absl::StrCat(Quoted(tensor),
                                                       ": sums of integers take integer weights, so "
                                                       "that all must be 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::service
