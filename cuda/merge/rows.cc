#include "cuda/merge/rows.h"

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

}  // namespace sparseagg::cuda
