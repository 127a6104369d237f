// The result of one tensor.
#ifndef SPARSEAGG_HOST_RESULT_H_
#define SPARSEAGG_HOST_RESULT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "host/base/column.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Keys as stored: 32 bits where num_rows allows (HasNarrowKeys), else 64.
using KeyVector = std::variant<Column<uint32_t>, Column<uint64_t>>;

// The merged rows of one tensor.
// Deterministic: the same committed submissions give the same bits on every engine, but for `plan`.
struct Result {
  Layout layout = Layout::kSparse;
  DType dtype = DType::kFloat32;
  bool has_values = true;  // false for kUnion
  uint32_t row_width = 1;
  uint64_t num_rows = 0;
  uint64_t num_keys = 0;      // sparse: number of keys; dense: `num_rows`
  uint64_t num_cut_keys = 0;  // keys that result_top_k and result_min_norm have removed (CutResult)

  KeyVector keys;            // sparse: ascending, unique; dense: empty
  Column<std::byte> values;  // num_keys × row_width of `dtype`, row-major
  Column<uint32_t> counts;   // num_keys, or empty when not asked for
  Column<double> weights;    // num_keys, or empty when not asked for
  Column<double> moments;    // num_keys × row_width, or empty when not asked for

  // How the last merge was done and why, for people to read; may be empty. Depends on the machine.
  std::string plan;

  // Key of row r.
  uint64_t KeyAt(uint64_t row) const {
    if (layout == Layout::kDense) return row;
    if (const auto* narrow = std::get_if<Column<uint32_t>>(&keys)) return (*narrow)[row];
    return std::get<Column<uint64_t>>(keys)[row];
  }
  // Bytes of one row's values.
  size_t row_bytes() const { return has_values ? SizeOf(dtype) * row_width : 0; }
  size_t memory_bytes() const;
};

// The same in the memory of an engine's device (Engine::device_stream). Complete: any stream may read it.
struct DeviceResult {
  Layout layout = Layout::kSparse;
  DType dtype = DType::kFloat32;
  bool has_values = true;
  uint32_t row_width = 1;
  uint64_t num_rows = 0;
  uint64_t num_keys = 0;
  uint32_t key_bytes = 4;  // of a key: 4 or 8

  // Columns as in Result, in device memory; null where Result has an empty one.
  const void* d_keys = nullptr;
  const void* d_values = nullptr;
  const uint32_t* d_counts = nullptr;
  const double* d_weights = nullptr;

  // Keeps the columns; must not outlive the engine. Its release blocks until the device has done all work that this
  // process has given it, since others may still read the columns.
  std::shared_ptr<const void> owner;
};

// Returns: a result with the properties of `result`, and no columns.
DeviceResult FormOf(const Result& result);

// Returns: a sparse result without rows.
Result EmptyResult(const TensorSpec& spec);

// Whether a result of `num_keys` keys is dense. kAuto: if dense is not larger (kUnion compares the bytes of counts), or
// if the density reaches dense_threshold.
bool IsDenseResult(const TensorSpec& spec, uint64_t num_keys);

// Returns: bytes of the columns of a dense result. Saturates.
uint64_t DenseResultBytes(const TensorSpec& spec);

// Returns: the most bytes that making a result of up to `max_keys` keys takes, if a dense result is made from a sparse
// one, or a sparse one is cut. Saturates.
uint64_t ResultBytes(const TensorSpec& spec, uint64_t max_keys);

// Removes the rows that the spec's result_top_k and result_min_norm do not keep: keys, values, counts and weights.
// Adds their number to result.num_cut_keys. The rows that stay keep their order.
//
// The norm of a row is √Σx² over its values, as the result holds them: after the division and the rounding to the
// result's dtype, integers converted to float64. Σx² is a sum in eight float64 lanes by the index of the column
// (clip::SquaredSum). A sum that is NaN, or beyond float64, counts as infinite.
// result_min_norm keeps the rows with √Σx² ≥ result_min_norm, the root correctly rounded. result_top_k keeps the rows
// of the largest Σx²; of equal ones those of the lower keys. Requires: `result` is sparse; the spec has passed
// Validate. Deterministic: depends only on the rows and the spec. Cost: two passes over the values, and a selection in
// expected linear time. Memory: ResultBytes counts it. Throws std::bad_alloc, and then the result is unchanged.
void CutResult(const TensorSpec& spec, Result& result);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_RESULT_H_
