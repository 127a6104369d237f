// The rounds of ":memory:": those of the server (service/rounds), in this process and without its calls.
#ifndef SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUNDS_H_
#define SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUNDS_H_

#include <pybind11/pybind11.h>

namespace sparseagg::python {

// Adds the classes MemoryRounds and MemoryRound to the module. _engine.pyi has their methods. Requires: the GIL.
void DefineMemoryRounds(pybind11::module_& module);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUNDS_H_
