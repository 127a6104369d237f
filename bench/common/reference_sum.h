// Reference sums and means that benchmarks check results against, computed without the engine.
#ifndef SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_
#define SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "host/result.h"

namespace sparseagg::bench {

// One tuple of a workload: its key, and where its row is.
struct WorkloadTuple {
  uint64_t key;
  uint32_t client;
  uint32_t row;
};

// Expected results of a workload under canonical numerics. Immutable.
// Cost: sorts all tuples, about a second for ten million.
class CanonicalSums {
 public:
  // `workload` must outlive this.
  explicit CanonicalSums(const Workload& workload);

  // Compares `result`, a SUM, MEAN or COORDINATE_MEAN of float32, with the float64 left fold of each key's weighted
  // values in the order of the clients, divided and rounded once. Keys, bits and counts must be the same; a fixed-point
  // sum may differ by its unit, 2^-s, for each contributor.
  // Returns: the first difference; empty if there is none.
  std::string FindDifference(const AggregationSpec& aggregation, const Result& result) const;

 private:
  const Workload& workload_;
  const std::vector<WorkloadTuple> tuples_;  // by key, client and row
};

// Expected sums of a workload of row_width 1, for peers that add in float32 in any order. Immutable.
class PlainSums {
 public:
  explicit PlainSums(const Workload& workload);

  // Compares rows in ascending order of key. Sums may differ by the rounding errors of float32. Keys of 32 or 64 bits.
  // Returns: the first difference; empty if there is none.
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
