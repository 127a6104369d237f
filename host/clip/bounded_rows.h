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

// The tuples of an update in ascending order of key, and its rows: one for each key, the sum of those that the update
// has. Owned by ApplyClips. Borrows spec and update.
//
//   ASSIGN_OR_RETURN(BoundedRows rows, BoundedRows::Create(spec, update));
//   RETURN_IF_ERROR(rows.KeepLargest().status());
//   RETURN_IF_ERROR(rows.AddSquaresTo(sum).status());              // also clamps
//   const ValidatedUpdate bounded = rows.Finish(factor);
//
// Not thread-safe.
class BoundedRows {
 public:
  // Sorts the tuples and folds repeated keys where needed. Errors: RESOURCE_EXHAUSTED: 2^32 or more unsorted tuples.
  static absl::StatusOr<BoundedRows> Create(const TensorSpec& spec, const ValidatedUpdate& update);

  // Keeps the max_keys rows of the largest sums of squares; of equal ones those of the lower keys.
  // Returns: whether there were more. Errors: RESOURCE_EXHAUSTED: there were, under kReject.
  absl::StatusOr<bool> KeepLargest();
  // Clamps the values of rows to ±linf, and adds their squares to `sum`.
  // Returns: whether a value was beyond linf. Errors: INVALID_ARGUMENT: one was, under kReject.
  absl::StatusOr<bool> AddSquaresTo(SquaredSum& sum);
  // Returns: the update that was, sorted, or that the bounds have made of it, with this factor.
  ValidatedUpdate Finish(double factor);

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
  void FoldRepeats();
  template <typename Key>
  static Column<Key>& KeysOf(Storage& storage);
  template <typename Key>
  void SelectAs(const Column<uint8_t>& kept);
  void ClampRows();
  // Copies keys and values that are not our own yet.
  void Own();
  uint64_t num_rows() const { return unique_ ? NumKeys(keys_) : folded_.size() / spec_.row_width; }
  // The values of rows, and their type.
  const std::byte* rows() const { return unique_ ? values_ : reinterpret_cast<const std::byte*>(folded_.data()); }
  DType row_dtype() const { return unique_ ? spec_.dtype : DType::kFloat64; }
  size_t tuple_bytes() const { return SizeOf(spec_.dtype) * spec_.row_width; }

  const TensorSpec& spec_;
  const ValidatedUpdate& update_;
  std::shared_ptr<Storage> storage_;  // null: keys and values are those of the update
  KeyColumn keys_;                    // of tuples, like values_
  const std::byte* values_;
  bool unique_;
  Column<double> folded_;  // unless unique_: the rows
};

}  // namespace sparseagg::clip

#endif  // SPARSEAGG_HOST_CLIP_BOUNDED_ROWS_H_
