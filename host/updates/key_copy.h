// Copies of callers' key arrays in the engine's key type.
#ifndef SPARSEAGG_HOST_UPDATES_KEY_COPY_H_
#define SPARSEAGG_HOST_UPDATES_KEY_COPY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "host/updates/input_checks.h"
#include "host/updates/update.h"

namespace sparseagg::internal {

// Copies a caller's keys into the tensor's key type, checks the copy, and continues `order` with it. Other threads may
// write to the caller's array during the call or later: every key of the copy is read once, and the copy is what is
// checked.
// Takes the memory of the copy from `arena`, or a new one if `arena` is null or full.
// Returns: columns that own the arena and `owner`, without values; a run stays a run.
// Errors: INVALID_ARGUMENT names tensor, position and value of a key that is negative, too large for the type or not
// below num_rows, or says that the array changed during the call. `order` is then unspecified.
// Cost: one pass over `keys`, batch by batch: each is copied and checked while it is in the first cache.
absl::StatusOr<UpdateColumns> CopyKeys(const InputLocation& location, const InputKeys& keys,
                                       std::shared_ptr<const void> owner, std::shared_ptr<KeyArena> arena,
                                       KeyOrder& order);

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_UPDATES_KEY_COPY_H_
