// From results to Python's objects. Everything here holds the GIL.
#ifndef SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_

#include <pybind11/pybind11.h>

#include "host/result.h"

namespace sparseagg::python {

// {"layout", "dtype", "keys", "values", "counts", "weights", "fixed_point_shift", "plan"}. Arrays are views
// of the engine's memory, which lives as long as one of them; bfloat16 values are their bits. None: a column that is
// not there, such as the keys of a dense result.
pybind11::dict ToPython(Result result);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_OUTPUTS_H_
