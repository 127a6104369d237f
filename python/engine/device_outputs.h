// Results in CUDA memory, as Python objects that lend their arrays to other libraries.
#ifndef SPARSEAGG_PYTHON_ENGINE_DEVICE_OUTPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_DEVICE_OUTPUTS_H_

#include <pybind11/pybind11.h>

#include "host/result.h"
#include "python/engine/local_runtime.h"

namespace sparseagg::python {

// Returns: a dictionary as of ToPython (outputs.h), with arrays of the Python class _engine.DeviceColumn. Each keeps
// the whole result until it, and every array that was lent, is gone. Requires: the GIL.
// `device`: the CUDA device of the result. `runtime`: whose engine made it.
pybind11::dict ToPython(const DeviceResult& result, int device, const LocalRuntime& runtime);

void DefineDeviceColumn(pybind11::module_& module);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_DEVICE_OUTPUTS_H_
