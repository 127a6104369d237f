// Conversion of results to Python objects.
#ifndef SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "host/result.h"
#include "host/spec/clip.h"

namespace sparseagg::python {

// Converts one result without copying its columns. Requires: the GIL.
// Returns: a dictionary with "layout", "dtype", "keys", "values", "counts", "weights", "moments",
// "fixed_point_shift", "plan" and "num_cut_keys".
// Arrays are views of the result's memory, which lives as long as one of them. bfloat16 values come as their bits.
// Absent keys, values and shifts are None; absent counts, weights and moments are empty arrays.
pybind11::dict ToPython(std::shared_ptr<const Result> result);

// Returns: a dictionary of the counts, by the names of the proto. Requires: the GIL.
pybind11::dict ToPython(const ClipSummary& clip);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
