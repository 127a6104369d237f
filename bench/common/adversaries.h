// Adversarial keys: as many as in workload G, with uniform ones to compare with.
#ifndef SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_
#define SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"

namespace sparseagg::bench {

// Returns: the names. The first two, "uniform" and "uniform, unsorted", are for comparison.
std::vector<std::string> AdversaryNames();

// Returns: 100 clients of 100 000 float32 tuples with keys below 2^30, unless the name says otherwise. `scale` divides
// the number of clients.
// Throws: std::invalid_argument for an unknown name.
Workload MakeAdversary(const std::string& name, uint64_t seed, int scale = 1);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_
