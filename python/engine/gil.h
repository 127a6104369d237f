// Work without Python's lock.
#ifndef SPARSEAGG_PYTHON_ENGINE_GIL_H_
#define SPARSEAGG_PYTHON_ENGINE_GIL_H_

#include <pybind11/pybind11.h>

#include <type_traits>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "python/engine/errors.h"

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

// WithoutGil for a function that returns a Status or StatusOr, and may throw. Returns: the value, if there is one.
// Throws: StatusException: an error, as of ToStatus.
template <typename Function>
auto CallWithoutGil(const Function& function) {
  const auto answer = WithoutGil([&] { return ToStatus(function); });
  if constexpr (std::is_same_v<decltype(function()), absl::Status>) {
    ThrowIfError(answer);
  } else {
    return ValueOrThrow(answer);
  }
}

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_GIL_H_
