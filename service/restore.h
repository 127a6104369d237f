// The restart of a server: rounds from the store.
#ifndef SPARSEAGG_SERVICE_RESTORE_H_
#define SPARSEAGG_SERVICE_RESTORE_H_

#include "absl/status/status.h"
#include "service/base/limits.h"
#include "service/models/model_registry.h"
#include "service/rounds/registry.h"
#include "service/store/store.h"
#include "service/streams/stream_registry.h"

namespace sparseagg::service {

// Opens the stored models, rounds and streams again. Models come first, since they hold versions of streams that they
// have not applied. Of rounds: open ones with their submissions and unfinished uploads, closed ones with their
// results. The submissions of a round are added in the order of client ids, and every chunk is validated again, so that
// results have the same bits as before. `limits`: of this run; those on sizes do not apply to what is stored.
// Errors: name the round. RESOURCE_EXHAUSTED: a round or submission needs more memory or rounds than the limits allow.
// DATA_LOSS: stored data are damaged. Of Store.
// Blocks: until all results are computed. Cost: that of receiving the submissions, without the network.
absl::Status RestoreRounds(Store& store, Registry& registry, StreamRegistry& streams, ModelRegistry& models,
                           const Limits& limits);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RESTORE_H_
