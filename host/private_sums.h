// From the exact sums of a private tensor to its result: keys are selected, and noise is added.
#ifndef SPARSEAGG_HOST_PRIVATE_SUMS_H_
#define SPARSEAGG_HOST_PRIVATE_SUMS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "host/privacy/noise.h"
#include "host/result.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Returns: a digest of all options of the tensors that a result depends on.
privacy::Bytes32 SpecDigest(absl::Span<const TensorSpec> specs);

// Makes the result of one private tensor (docs/privacy.md). Selects keys by the options of the tensor; adds discrete
// Gaussian noise to each value, on the lattice of the sum; then scales, divides, rounds once, and chooses the layout.
// `sums`: the result for SumSpec(spec). `round_key`: of DeriveRoundKey. Throws std::bad_alloc. Deterministic: noise
// depends on the round key, the tensor's name and the row's key alone. Uses the threads of the host.
Result MakePrivateResult(const TensorSpec& spec, const Result& sums, const privacy::Bytes32& round_key);

// Returns: the most memory that MakePrivateResult needs for sums of `num_keys` keys. Saturates.
uint64_t PrivateResultBytes(const TensorSpec& spec, uint64_t num_keys);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_PRIVATE_SUMS_H_
