// The check of a benchmark's result: the plain canonical sums and means, made without the engine.
#ifndef SPARSEAGG_BENCH_REFERENCE_SUM_H_
#define SPARSEAGG_BENCH_REFERENCE_SUM_H_

#include <string>

#include "bench/workloads.h"
#include "host/result.h"

namespace sparseagg::bench {

// Says where `result`, a SUM, MEAN or COORDINATE_MEAN of float32 over `workload` in the order of its clients, differs
// from the float64 left fold of each key's (weighted) values, divided and rounded once; empty when every key, bit and
// count (where there are counts) is the same. Sorts all tuples: seconds for ten millions. A fixed-point sum may differ
// by its unit, 2^-s, for each contributor.
std::string FindDifference(const Workload& workload, const AggregationSpec& aggregation, const Result& result);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_REFERENCE_SUM_H_
