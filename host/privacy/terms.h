// The integers that a submission adds to a private sum.
#ifndef SPARSEAGG_HOST_PRIVACY_TERMS_H_
#define SPARSEAGG_HOST_PRIVACY_TERMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/privacy/lattice.h"
#include "host/privacy/noise.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::privacy {

// Whether rows of integers have a column for the score of the key, after the columns of the tensor.
bool HasScores(const TensorSpec& spec);

// Returns: the spec of the exact sum that a private tensor needs: int64 rows of terms, and scores.
TensorSpec SumSpec(const TensorSpec& spec);

// Returns: the lattice of a tensor, which is that of all tensors of its round. Requires: spec.privacy.
Lattice LatticeOf(const TensorSpec& spec);

// Makes the terms of one submission, n = trunc(w·(v·f)·2^s): a product after the other is rounded to float64. f is the
// factor of the updates. If Σn² over all tensors is beyond lattice.norm_bound, f is multiplied by 1 − 2⁻³⁰, and again:
// the check is in integers, so that roundings cannot lengthen a submission. Each update becomes one for SumSpec, of
// strictly ascending keys. Returns: a digest of keys and terms. Requires: ApplyClips has been called; all tensors have
// the same privacy options. Errors: INTERNAL: a norm beyond the bound after many factors. Deterministic. Thread-safe.
absl::StatusOr<Bytes32> MakeTerms(absl::Span<const TensorSpec> specs, const Lattice& lattice,
                                  std::vector<ValidatedUpdate>& updates);

// Returns: the most memory that MakeTerms needs in addition to the updates, the new updates included. Saturates.
uint64_t MakeTermsBytes(absl::Span<const TensorSpec> specs, absl::Span<const ValidatedUpdate> updates);

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_TERMS_H_
