// The values of rows that no version has touched.
#ifndef SPARSEAGG_HOST_MODEL_INITIAL_ROWS_H_
#define SPARSEAGG_HOST_MODEL_INITIAL_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "host/model/model_spec.h"

namespace sparseagg {

// Philox4x32-10 (Salmon et al. 2011), as in Random123. Deterministic.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Writes the initial rows of `keys`, one after the other, in the dtype of the tensor. `position`: of the tensor in the
// spec of its model, which is part of Philox's counter. `out`: keys.size() · tensor.row_bytes() bytes. The same bits on
// every machine: integer sums, one product in float64, one rounding. Cost: 5 ns a uniform value, 32 ns a normal one.
// Requires: the spec has passed Validate. Thread-safe.
void WriteInitialRows(const ModelTensorSpec& tensor, uint32_t position, absl::Span<const uint64_t> keys,
                      std::byte* out);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_INITIAL_ROWS_H_
