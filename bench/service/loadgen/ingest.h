// Ingest, measured in turns with what it is compared with.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_

#include <string>

#include "bench/service/loadgen/flags.h"
#include "bench/service/loadgen/scenarios.h"
#include "bench/service/loadgen/submit_call.h"

namespace sparseagg::bench {

// Members of a JSON object. Server, sinks and, with --against-plain, the same tuples in plain encodings take turns, so
// that what else happens on the machine meets them alike. "verified" is false where a refusal that is allowed left
// results that are not held to the engine's. std::runtime_error: a wrong result, or a refusal that is not allowed.
std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_INGEST_H_
