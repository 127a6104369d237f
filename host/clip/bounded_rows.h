// The rows of one update while bounds are applied to them.
#ifndef SPARSEAGG_HOST_CLIP_BOUNDED_ROWS_H_
#define SPARSEAGG_HOST_CLIP_BOUNDED_ROWS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/column.h"
#include "host/clip/clip_kernels.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::clip {

// One row for each key of an update, in ascending order of key. Owned by ApplyClips. Borrows spec and update.
//
//   ASSIGN_OR_RETURN(BoundedRows rows, BoundedRows::Create(spec, update));
//   RETURN_IF_ERROR(rows.KeepLargest());
//   rows.AddSquaresTo(sum);                                        // also clamps
//   ASSIGN_OR_RETURN(ValidatedUpdate bounded, rows.Finish(factor));
//
// Not thread-safe.
class BoundedRows {
 public:
  // Sorts the tuples and folds repeated keys where needed. Errors: RESOURCE_EXHAUSTED: 2^32 or more unsorted tuples.
  static absl::StatusOr<BoundedRows> Create(const TensorSpec& spec, const ValidatedUpdate& update);

  // Keeps the max_keys rows of the largest sums of squares; of equal ones those of the lower keys.
  // Returns: whether there were more. Errors: RESOURCE_EXHAUSTED: there were, under kReject.
  absl::StatusOr<bool> KeepLargest();
  // Adds the squares of all values, clamped to ±linf, to `sum`.
  // Returns: whether a value was beyond linf. Errors: INVALID_ARGUMENT: one was, under kReject.
  absl::StatusOr<bool> AddSquaresTo(SquaredSum& sum);
  // Returns: the update with the bounds applied, its values multiplied by `factor`.
  // Errors: INVALID_ARGUMENT: a sum of a key's values is beyond the dtype.
  absl::StatusOr<ValidatedUpdate> Finish(double factor);

 private:
  // Memory of keys and values of our own.
  struct Storage {
    Column<uint32_t> narrow_keys;
    Column<uint64_t> wide_keys;
    Column<std::byte> values;
  };

  BoundedRows(const TensorSpec& spec, const ValidatedUpdate& update);
  template <typename Key>
  void SortAs();
  template <typename Key>
  Column<Key>& KeysOf(Storage& storage);
  template <typename Key>
  void SelectAs(const Column<uint8_t>& kept, uint64_t num_kept);
  uint64_t num_values() const { return num_keys_ * spec_.row_width; }

  const TensorSpec& spec_;
  const ValidatedUpdate& update_;
  std::shared_ptr<Storage> storage_;  // null: keys and values are those of the update
  KeyColumn keys_;
  uint64_t num_keys_;
  const std::byte* values_;
  DType dtype_;         // of values_: the tensor's, or float64 if repeated keys were folded
  bool folded_ = false;
  bool changed_ = false;  // by a bound
};

}  // namespace sparseagg::clip

#endif  // SPARSEAGG_HOST_CLIP_BOUNDED_ROWS_H_
