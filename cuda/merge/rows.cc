#include "cuda/merge/rows.h"

#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<DeviceRows> AllocateRows(Session& session, const TensorShape& shape, uint32_t num_rows) {
  DeviceRows rows;
  rows.num_rows = num_rows;
  for (const RowColumn column : kRowColumns) {
    ASSIGN_OR_RETURN(rows[column], session.Allocate(num_rows * BytesPerRow(shape, column)));
  }
  return rows;
}

UnfinishedRows ToUnfinished(HostRows&& rows) {
  UnfinishedRows unfinished;
  unfinished.num_rows = rows.num_rows;
  unfinished.keys = std::move(rows[RowColumn::kKeys]);
  unfinished.accs = std::move(rows[RowColumn::kAccs]);
  unfinished.counts = std::move(rows[RowColumn::kCounts]);
  unfinished.weights = std::move(rows[RowColumn::kWeights]);
  return unfinished;
}

HostRows FromUnfinished(UnfinishedRows&& rows) {
  HostRows host;
  host.num_rows = static_cast<uint32_t>(rows.num_rows);
  host[RowColumn::kKeys] = std::move(rows.keys);
  host[RowColumn::kAccs] = std::move(rows.accs);
  host[RowColumn::kCounts] = std::move(rows.counts);
  host[RowColumn::kWeights] = std::move(rows.weights);
  return host;
}

}  // namespace sparseagg::cuda
