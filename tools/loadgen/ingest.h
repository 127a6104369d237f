// The ingest benchmark.
#ifndef SPARSEAGG_TOOLS_LOADGEN_INGEST_H_
#define SPARSEAGG_TOOLS_LOADGEN_INGEST_H_

#include <string>

#include "tools/loadgen/flags.h"
#include "tools/loadgen/scenarios.h"
#include "tools/loadgen/submit_call.h"

namespace sparseagg::bench {

// Measures how fast the server takes submissions. Server, sinks and, with --against-plain, the same tuples in plain
// encodings take turns, so that other load on the machine affects all of them alike.
// Returns: members of a JSON object. "verified" is false if refusals left results that were not compared.
// Errors: std::runtime_error for a wrong result, or a refusal without --allow-refusals.
std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_INGEST_H_
