// Reference sums that benchmarks check results against, computed without the engine.
#ifndef SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_
#define SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "host/result.h"

namespace sparseagg::bench {

// The sums of a workload: for each key in ascending order, the float64 left fold of its values in the order of the
// clients. Immutable.
// Cost: sorts all tuples, about a second for ten million.
class ReferenceSums {
 public:
  explicit ReferenceSums(const Workload& workload);

  // Compares a sparse result of canonical sums: keys and bits must be the same.
  // Returns: the first difference; empty if there is none.
  std::string FindDifference(const Result& result) const;
  // Compares rows of peers that add in float32 in any order, in ascending order of key. Sums may differ by the rounding
  // errors of float32. For workloads of row_width 1; keys of 32 or 64 bits.
  template <typename Key>
  std::string FindDifference(const std::vector<Key>& keys, const std::vector<float>& sums) const;

 private:
  const size_t row_width_;
  std::vector<uint64_t> keys_;
  std::vector<double> sums_;        // row_width_ for each key
  std::vector<double> magnitudes_;  // sums of magnitudes, likewise
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_REFERENCE_SUM_H_
