// Copies of callers' key arrays in the engine's key type.
#ifndef SPARSEAGG_PYTHON_ENGINE_KEYS_H_
#define SPARSEAGG_PYTHON_ENGINE_KEYS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "python/engine/local_round.h"

namespace sparseagg::python {

// Returns: the number of keys; for a run, its length.
uint64_t NumKeys(const InputKeys& keys);

// Copies a caller's keys into the key type of `spec`. `owner` keeps the update's values alive. Needs no GIL. Other
// threads may write to the caller's array during the call or later; the copy does not change after the call. Returns:
// columns that own the copy and `owner`, without values; a run stays a run. The keys are not validated yet. Errors:
// INVALID_ARGUMENT names tensor, position and value of the first key that is negative or too large for the type, or
// says that the array changed during the call. Cost: one pass over `keys`.
absl::StatusOr<UpdateColumns> CopyKeys(const TensorSpec& spec, const InputKeys& keys,
                                       const std::shared_ptr<const void>& owner);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_KEYS_H_
