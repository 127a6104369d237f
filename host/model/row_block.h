// Rows of a tensor as bytes, for the log and the snapshots of models.
#ifndef SPARSEAGG_HOST_MODEL_ROW_BLOCK_H_
#define SPARSEAGG_HOST_MODEL_ROW_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/model/model_spec.h"
#include "host/result.h"

namespace sparseagg {

// Some rows of one tensor. A block is a header of 24 bytes and columns, each padded with zeros to a multiple of 8
// bytes; all numbers are little-endian:
//
//   uint8  kind     Kind; never 0, since the store has a meaning for chunks that begin so
//   uint8  dtype    of the values: the number of DType
//   uint8  key_bytes   8; or 0: the keys are first_key, first_key + 1, …
//   uint8  0
//   uint32 tensor   its position in the model
//   uint64 num_rows
//   uint64 first_key
//   keys, touched (kRows, kRemoved: uint32), x (kDelta, kRows), m, v (kRows: those that the optimizer has)
//
// The store's checksums guard the bytes; Parse checks lengths.
struct RowBlock {
  enum class Kind : uint8_t {
    kDelta = 1,    // merged rows, of a log record
    kRows = 2,     // touched rows with their states, of a snapshot
    kRemoved = 3,  // keys that were removed, of a snapshot
  };
  static constexpr size_t kMaxBytes = size_t{4} << 20;  // of a block, unless one row is larger

  Kind kind = Kind::kDelta;
  DType dtype = DType::kFloat32;
  uint8_t key_bytes = 8;
  uint32_t tensor = 0;
  uint64_t num_rows = 0;
  uint64_t first_key = 0;
  // Views; not aligned. `planes`: x, then m and v as the optimizer has them.
  absl::string_view keys, touched;
  std::array<absl::string_view, 3> planes;

  // Returns: the keys of all rows, whatever key_bytes is.
  Column<uint64_t> Keys() const;

  // Errors: DATA_LOSS: an unknown kind or dtype, no such tensor, or a length that does not follow from the header.
  static absl::StatusOr<RowBlock> Parse(absl::string_view bytes, const ModelSpec& spec);
  // Calls `take` with the block's bytes, in several spans. Errors: of `take`.
  absl::Status Write(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const;
};

// The merged rows of one version: a result for each tensor of the model, in its order; null: the round does not have
// the tensor, or its result has no rows. Borrowed.
using ModelDelta = std::vector<const Result*>;

// Returns: the rows that a result has: a dense one lacks those whose count is 0.
uint64_t NumPresent(const Result& rows);
// Calls `take` with the present rows, in ascending order of keys, up to `most_rows` at a time: keys and values, which
// are copied only where absent rows lie between them. Errors: of `take`.
absl::Status ForEachPart(const Result& rows, size_t most_rows,
                         absl::FunctionRef<absl::Status(absl::Span<const uint64_t>, const std::byte*)> take);

// Calls `take` with blocks of kDelta of at most kMaxBytes, which together are the present rows of `delta`.
absl::Status WriteDelta(const ModelDelta& delta,
                        absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take);

// Appends a block of kDelta to `results`, which is empty at first and then has a sparse result for each tensor of the
// model. Errors: of RowBlock::Parse; DATA_LOSS: another kind or dtype, or keys that do not ascend or fit the tensor.
absl::Status ReadDelta(absl::string_view block, const ModelSpec& spec, std::vector<Result>* results);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_ROW_BLOCK_H_
