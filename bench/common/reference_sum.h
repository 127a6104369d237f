// The checks of benchmarks' results: the plain canonical sums and means, made without the engine.
#ifndef SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_
#define SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "host/result.h"

namespace sparseagg::bench {

// A pair of a workload: where its key and row are.
struct WorkloadTuple {
  uint64_t key;
  uint32_t client;
  uint32_t row;
};

// What the engine is to make of a workload. Sorts all tuples, which takes a second for ten millions.
class CanonicalSums {
 public:
  // The workload must outlive this.
  explicit CanonicalSums(const Workload& workload);

  // Says where `result`, a SUM, MEAN or COORDINATE_MEAN of float32 in the order of the clients, differs from the
  // float64 left fold of each key's (weighted) values, divided and rounded once; empty when every key, bit and count
  // (where there are counts) is the same. A fixed-point sum may differ by its unit, 2^-s, for each contributor.
  std::string FindDifference(const AggregationSpec& aggregation, const Result& result) const;

 private:
  const Workload& workload_;
  const std::vector<WorkloadTuple> tuples_;  // by key, client and row
};

// The sums of a workload of single values, for answers that are sums in float32, in any order.
class PlainSums {
 public:
  explicit PlainSums(const Workload& workload);

  // Says where rows, of ascending keys, have another key, or a sum further from the float64 one than float32 can be;
  // empty when none has. Keys of 32 or 64 bits.
  template <typename Key>
  std::string FindDifference(const std::vector<Key>& keys, const std::vector<float>& sums) const;

 private:
  struct Row {
    uint64_t key;
    double sum;
    double magnitude;  // the sum of magnitudes
  };
  std::vector<Row> rows_;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_
