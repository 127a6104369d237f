// UpdateRows: one client's update of one tensor, for reading.
#ifndef SPARSEAGG_HOST_UPDATES_UPDATE_ROWS_H_
#define SPARSEAGG_HOST_UPDATES_UPDATE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "host/spec/dtype.h"
#include "host/updates/update.h"

namespace sparseagg {

// The rows of an update that an accumulator has taken: strictly ascending keys, repeated keys folded, and the bounds of
// the tensor applied. Row i has row_width values of the tensor. Borrowed; `owner` keeps keys and values alive, also
// after the accumulator has released the update. Without keys all other members are meaningless.
struct UpdateRows {
  KeyColumn keys = KeyRun{};
  uint64_t num_keys = 0;
  const std::byte* values = nullptr;  // row-major; null for kUnion
  DType dtype = DType::kFloat32;      // of `values`: the tensor's; float64 or int64 where repeated keys were folded
  double factor = 1.0;                // of each value, as in a merge: value · factor, rounded to float64
  std::shared_ptr<const void> owner;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_ROWS_H_
