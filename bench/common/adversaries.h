// Keys that are unkind to a merge, as many as those of workload G, beside uniform ones to compare with.
#ifndef SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_
#define SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"

namespace sparseagg::bench {

// The names; the first two, "uniform" and "uniform, unsorted", are the yardsticks.
std::vector<std::string> AdversaryNames();

// 100 clients × 100 000 float32 tuples with keys below 2^30, unless the name says otherwise. `scale` divides the number
// of clients. std::invalid_argument: no such name.
Workload MakeAdversary(const std::string& name, uint64_t seed, int scale = 1);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_ADVERSARIES_H_
