// From the integers that callers use as keys to the engine's.
#ifndef SPARSEAGG_PYTHON_ENGINE_KEYS_H_
#define SPARSEAGG_PYTHON_ENGINE_KEYS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "python/engine/local_round.h"

namespace sparseagg::python {

uint64_t NumKeys(const InputKeys& keys);

// Copies the keys of a caller into the key type of `spec`. `owner` keeps the values of the update alive.
// Whatever other threads write to the caller's array, during the call or later, the copy does not change after it.
// Returns: columns that own the copy and `owner`; a run stays a run. The keys are not validated: validate the copy.
// Errors: INVALID_ARGUMENT names tensor, position and value of the first key that is negative or too large for the
// type. Cost: one pass over `keys`.
absl::StatusOr<UpdateColumns> CopyKeys(const TensorSpec& spec, const InputKeys& keys,
                                       const std::shared_ptr<const void>& owner);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_KEYS_H_
