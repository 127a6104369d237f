// nanobind with all conversions that a file of this folder needs, since a type's must be the same in every file; and
// the parts of the module.
#ifndef SPARSEAGG_PYTHON_ENGINE_NB_H_
#define SPARSEAGG_PYTHON_ENGINE_NB_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace sparseagg::python {

namespace nb = nanobind;

// The parts of the module, each of which adds its functions or classes: _engine.pyi has them. Require: the GIL.
void DefineDeviceArray(nb::module_& module);
void DefineDeviceColumn(nb::module_& module);
void DefineMemoryRound(nb::module_& module);
void DefineMemoryRounds(nb::module_& module);  // with DefineMemoryRound
void DefineModels(nb::module_& module);
void DefineWireKeys(nb::module_& module);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_NB_H_
