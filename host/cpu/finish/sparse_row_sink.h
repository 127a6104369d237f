// Row sink of a sparse result.
#ifndef SPARSEAGG_HOST_CPU_FINISH_SPARSE_ROW_SINK_H_
#define SPARSEAGG_HOST_CPU_FINISH_SPARSE_ROW_SINK_H_

#include <cstddef>
#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "host/base/column.h"
#include "host/cpu/finish/row_finisher.h"
#include "host/cpu/rows/direct_output.h"
#include "host/result.h"

namespace sparseagg::cpu {

// Sink (see ParallelMerge) that finishes rows and writes them one behind the other. Each thread of a merge owns one.
// Not thread-safe.
template <typename Key, typename Fold>
class SparseRowSink {
 public:
  using Rows = typename RowFinisher<Key, Fold>::Rows;

  // `result`: made by MakeSparse.
  SparseRowSink(const FinishParams& params, Result& result) : finisher_(params), result_(result) {}

  absl::Status Prepare(Rows& rows) { return finisher_.Prepare(rows); }
  size_t size() const { return finisher_.size(); }
  bool AcceptsDirectOutput() const { return finisher_.IsDirect(); }
  DirectOutput<Key> DirectOutputAt(uint64_t at) const {
    return finisher_.DirectOutputAt(std::get<Column<Key>>(result_.keys), result_.values, result_.counts,
                                    result_.weights, at);
  }
  void Write(uint64_t at) {
    finisher_.Write(std::get<Column<Key>>(result_.keys), result_.values, result_.counts, result_.weights, at);
  }

 private:
  RowFinisher<Key, Fold> finisher_;
  Result& result_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_SPARSE_ROW_SINK_H_
