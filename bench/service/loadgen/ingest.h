// The ingest benchmark.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_

#include <string>

#include "bench/service/loadgen/flags.h"
#include "bench/service/loadgen/scenarios.h"
#include "bench/service/loadgen/submit_call.h"

namespace sparseagg::bench {

// Measures how fast the server takes submissions. Server, sinks and, with --against-plain, the same tuples in plain
// encodings take turns, so that other load on the machine affects all of them alike.
// Returns: members of a JSON object. "verified" is false if refusals left results that were not compared.
// Errors: std::runtime_error for a wrong result, or a refusal without --allow-refusals.
std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_
