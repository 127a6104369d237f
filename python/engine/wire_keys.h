// Packed keys of the wire, for the package's client.
#ifndef SPARSEAGG_PYTHON_ENGINE_WIRE_KEYS_H_
#define SPARSEAGG_PYTHON_ENGINE_WIRE_KEYS_H_

#include <pybind11/pybind11.h>

namespace sparseagg::python {

// Adds encode_keys and decode_keys to the module.
void DefineWireKeys(pybind11::module_& module);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_WIRE_KEYS_H_
