// From the Python package's specs to the engine's. Everything here holds the GIL.
#ifndef SPARSEAGG_PYTHON_ENGINE_SPECS_H_
#define SPARSEAGG_PYTHON_ENGINE_SPECS_H_

#include <pybind11/pybind11.h>

#include <vector>

#include "host/spec/spec.h"

namespace sparseagg::python {

// Of a list of dictionaries, one a tensor: name, dtype, dimension, width, layout and modular of a TensorSpec, the
// fields of its Aggregation by the same names, and max_submissions. Throws ValueError for names that it does not know,
// which the package has refused before.
std::vector<TensorSpec> ToTensorSpecs(const pybind11::list& tensors);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_SPECS_H_
