// Work without Python's lock.
#ifndef SPARSEAGG_PYTHON_ENGINE_GIL_H_
#define SPARSEAGG_PYTHON_ENGINE_GIL_H_

#include <pybind11/pybind11.h>

namespace sparseagg::python {

// Calls `function`, which uses no Python, without the GIL. Returns: what it returns.
//
// Not with py::gil_scoped_release: while Python ends, taking the GIL again ends a thread by pthread_exit, which unwinds
// it, and the process is aborted if a destructor does that. For the same reason no destructor releases the GIL.
template <typename Function>
auto WithoutGil(const Function& function) {
  PyThreadState* const thread = PyEval_SaveThread();
  auto answer = [&] {
    try {
      return function();
    } catch (...) {
      PyEval_RestoreThread(thread);
      throw;
    }
  }();
  PyEval_RestoreThread(thread);
  return answer;
}

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_GIL_H_
