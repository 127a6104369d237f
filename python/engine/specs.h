// Conversion of the Python package's tensor specs to TensorSpec.
#ifndef SPARSEAGG_PYTHON_ENGINE_SPECS_H_
#define SPARSEAGG_PYTHON_ENGINE_SPECS_H_

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "host/spec/spec.h"

namespace sparseagg::python {

// Converts a list of dictionaries, one for each tensor. The keys of a dictionary are name, dtype, num_rows, row_width,
// layout and modular of a TensorSpec, the field names of its AggregationSpec, max_submissions, and clip and round_clip:
// None, or a dictionary of the fields of a ClipSpec; privacy: likewise of a PrivacySpec, the same for all tensors.
// Requires: the GIL. Returns: specs that are not validated but for their bounds. Errors: ValueError for unknown names
// of enum values or dtypes; the package refuses them before. StatusException: as of ResolveClips and ResolvePrivacy.
std::vector<TensorSpec> ToTensorSpecs(const pybind11::list& tensors);

// Returns: the dtype of this name. Errors: ValueError.
DType ParseDType(const std::string& name);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_SPECS_H_
