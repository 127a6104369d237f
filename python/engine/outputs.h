// Conversion of results to Python objects.
#ifndef SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_

#include <memory>

#include "host/result.h"
#include "host/spec/clip.h"
#include "python/engine/local_runtime.h"
#include "python/engine/nb.h"

namespace sparseagg::python {

// Converts one result without copying its columns. Requires: the GIL.
// Returns: a dictionary with "layout", "dtype", "keys", "values", "counts", "weights", "moments", "plan"
// and "num_cut_keys".
// Arrays are views of the result's memory, which lives as long as one of them. bfloat16 values come as their bits.
// Absent keys and values are None; absent counts, weights and moments are empty arrays.
nb::dict ToPython(std::shared_ptr<const Result> result);

// The same of a result in CUDA memory, with arrays of the Python class _engine.DeviceColumn and without "moments" and
// "num_cut_keys". Each keeps the whole result until it, and every array that was lent, is gone.
// `device`: the CUDA device of the result. `runtime`: whose engine made it.
nb::dict ToPython(const DeviceResult& result, int device, const LocalRuntime& runtime);

// Returns: a dictionary of the counts, by the names of the proto. Requires: the GIL.
nb::dict ToPython(const ClipSummary& clip);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
