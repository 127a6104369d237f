// Submissions in batches: many clients in one call.
#ifndef SPARSEAGG_TOOLS_LOADGEN_BATCHES_H_
#define SPARSEAGG_TOOLS_LOADGEN_BATCHES_H_

#include <string>

#include "tools/loadgen/flags.h"
#include "tools/loadgen/scenarios.h"
#include "tools/loadgen/submit_call.h"

namespace sparseagg::bench {

// Measures how many submissions a second the server takes in batches of `flags.batch` clients, `flags.streams` calls at
// any time. Each repetition has a round of its own, whose result is compared bit for bit.
// Returns: members of a JSON object. Errors: std::runtime_error for a refusal or a wrong result.
std::string MeasureBatches(const Flags& flags, Plan& plan, Connections& server);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_BATCHES_H_
