// The layout of a result.
#ifndef SPARSEAGG_HOST_CPU_ASSEMBLE_H_
#define SPARSEAGG_HOST_CPU_ASSEMBLE_H_

#include <cstdint>

#include "host/result.h"
#include "host/spec.h"

namespace sparseagg::cpu {

// A result of `num_rows` sparse rows, uninitialised.
Result MakeSparse(const TensorSpec& spec, uint64_t num_rows);

// Cuts a sparse result to its first `num_rows` rows, and gives the memory of the others back.
void CutSparse(const TensorSpec& spec, uint64_t num_rows, Result& result);

// The same rows in the dense layout, other keys holding `fill`.
Result MakeDense(const TensorSpec& spec, const Result& sparse);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ASSEMBLE_H_
