#include "host/clip/clip.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/clip/bounded_rows.h"
#include "host/clip/clip_kernels.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/updates/input_checks.h"

namespace sparseagg {
namespace {

// Returns: the factor that brings the norm down to `bound`; 1 if it is not above.
// Errors: INVALID_ARGUMENT: the norm is not finite, or above the bound under kReject. `where`: how the text begins.
absl::StatusOr<double> FactorOf(const clip::SquaredSum& sum, double bound, ClipPolicy policy,
                                const std::string& where) {
  if (bound == TensorClip::kNone) return 1.0;
  const double norm = std::sqrt(sum.Total());
  if (!std::isfinite(norm)) {
    return absl::InvalidArgumentError(absl::StrCat(where, "the squared L2 norm of the submission is beyond float64"));
  }
  if (norm <= bound) return 1.0;
  if (policy == ClipPolicy::kClip) return bound / norm;
  const int digits = absl::StrFormat("%.9g", norm) == absl::StrFormat("%.9g", bound) ? 17 : 9;  // so that they differ
  return absl::InvalidArgumentError(absl::StrFormat("%sthe L2 norm %.*g of the submission is beyond clip.l2 %.*g",
                                                    where, digits, norm, digits, bound));
}

// Errors: INVALID_ARGUMENT: a value is not finite; as of ValidatedUpdate::Create.
absl::Status CheckValues(const TensorSpec& spec, const ValidatedUpdate& update) {
  return internal::CheckValues({&spec, std::nullopt}, 0, reinterpret_cast<const char*>(update.values()),
                               update.num_keys() * spec.row_width,
                               [&update](uint64_t position) { return KeyAt(update.keys(), position); });
}

}  // namespace

absl::StatusOr<ClipOutcome> ApplyClips(absl::Span<const TensorSpec> specs, std::vector<ValidatedUpdate>& updates) {
  ClipOutcome outcome;
  std::vector<std::optional<clip::BoundedRows>> rows(specs.size());
  std::vector<double> factors(specs.size(), 1.0);
  clip::SquaredSum shared;
  const TensorClip* sharing = nullptr;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorClip& clip = specs[t].clip;
    if (!clip.has_bound() || updates[t].num_keys() == 0) continue;
    if (updates[t].on_device()) {
      return absl::UnimplementedError(
          absl::StrCat(Quoted(specs[t]),
                       ": clip takes updates in host memory, and this one is in device memory: copy "
                       "it to the host first"));
    }
    ASSIGN_OR_RETURN(clip::BoundedRows bounded, clip::BoundedRows::Create(specs[t], updates[t]));
    rows[t].emplace(std::move(bounded));
    ASSIGN_OR_RETURN(const bool drops_keys, rows[t]->KeepLargest());
    clip::SquaredSum own;
    clip::SquaredSum& sum = clip.shares_l2 ? shared : own;
    ASSIGN_OR_RETURN(const bool clamps, rows[t]->AddSquaresTo(sum));
    if (clip.checks_values() && !std::isfinite(sum.Total())) RETURN_IF_ERROR(CheckValues(specs[t], updates[t]));
    outcome.max_keys |= drops_keys;
    outcome.linf |= clamps;
    if (clip.shares_l2) {
      sharing = &clip;
    } else {
      ASSIGN_OR_RETURN(factors[t], FactorOf(own, clip.l2, clip.on_l2, absl::StrCat(Quoted(specs[t]), ": ")));
    }
  }
  double shared_factor = 1.0;
  if (sharing != nullptr) {
    ASSIGN_OR_RETURN(shared_factor, FactorOf(shared, sharing->l2, sharing->on_l2, ""));
  }
  for (size_t t = 0; t < specs.size(); ++t) {
    if (!rows[t].has_value()) continue;
    const double factor = specs[t].clip.shares_l2 ? shared_factor : factors[t];
    outcome.factor = std::min(outcome.factor, factor);
    updates[t] = rows[t]->Finish(factor);
  }
  return outcome;
}

uint64_t ApplyClipsBytes(absl::Span<const TensorSpec> specs, absl::Span<const ValidatedUpdate> updates) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorSpec& spec = specs[t];
    if (!spec.clip.has_bound()) continue;
    const uint64_t num_keys = updates[t].num_keys();
    if (updates[t].unique() && spec.clip.linf == TensorClip::kNone && spec.clip.max_keys == 0) continue;
    // Sorted or clamped tuples, folded rows, and the tuples that max_keys keeps, with norms and order of all.
    const uint64_t tuple_bytes = KeyBytes(spec) + SizeOf(spec.dtype) * uint64_t{spec.row_width};
    uint64_t of_key = tuple_bytes;
    if (!updates[t].unique()) of_key += sizeof(double) * uint64_t{spec.row_width};
    if (spec.clip.max_keys != 0) of_key += tuple_bytes + 3 * sizeof(uint64_t);
    bytes = SaturatingAdd(bytes, SaturatingMultiply(num_keys, of_key));
    if (!updates[t].unique()) bytes = SaturatingAdd(bytes, cpu::SortedTuplesBytes(spec, num_keys));
  }
  return bytes;
}

}  // namespace sparseagg
