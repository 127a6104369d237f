// Specs and partials for the fuzz target of partials, and for its seeds.
#ifndef SPARSEAGG_TESTS_FUZZ_PARTIALS_H_
#define SPARSEAGG_TESTS_FUZZ_PARTIALS_H_

#include <limits>
#include <string>
#include <vector>

#include "host/aggregation.h"
#include "host/partial.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Tensors of one name, so that a block may be of any of them.
inline std::vector<TensorSpec> PartialSpecs() {
  TensorSpec binned;
  binned.name = "t";
  binned.num_rows = 1000;
  binned.row_width = 2;
  binned.aggregation.op = Op::kMean;
  binned.aggregation.weighting = Weighting::kByWeight;
  binned.aggregation.numerics = Numerics::kBinned;
  binned.aggregation.return_counts = true;
  binned.aggregation.return_weights = true;
  TensorSpec integer;
  integer.name = "t";
  integer.dtype = DType::kInt64;
  TensorSpec least;
  least.name = "t";
  least.num_rows = 1000;
  least.aggregation.op = Op::kMin;
  TensorSpec keys = least;
  keys.aggregation.op = Op::kUnion;
  return {binned, integer, least, keys};
}

// Returns: a partial of one tensor of an aggregation.
inline std::string ExportAll(Aggregation& aggregation, size_t tensor) {
  constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
  std::string bytes;
  AppendPartialBlock(aggregation.tensors()[tensor], *aggregation.ExportPartial(tensor, 0, kEnd, kEnd), bytes);
  return bytes;
}

}  // namespace sparseagg

#endif  // SPARSEAGG_TESTS_FUZZ_PARTIALS_H_
