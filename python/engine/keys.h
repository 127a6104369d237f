// From the integers that callers use as keys to the engine's.
#ifndef SPARSEAGG_PYTHON_ENGINE_KEYS_H_
#define SPARSEAGG_PYTHON_ENGINE_KEYS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "python/engine/local_round.h"

namespace sparseagg::python {

uint64_t NumKeys(const InputKeys& keys);

// `keys` in the key type of `spec`, and what keeps them: `owner` where they are taken as they are (unsigned of that
// width, or signed with no negative among them, at the cost of one pass), otherwise a copy's. INVALID_ARGUMENT names
// tensor, position and value of the first key that is negative or does not fit; whether keys are below the dimension is
// for validation to say.
absl::StatusOr<UpdateColumns> ToEngineKeys(const TensorSpec& spec, const InputKeys& keys,
                                           const std::shared_ptr<const void>& owner);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_KEYS_H_
