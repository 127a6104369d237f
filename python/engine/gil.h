// Work without Python's lock, and calls of Python code.
#ifndef SPARSEAGG_PYTHON_ENGINE_GIL_H_
#define SPARSEAGG_PYTHON_ENGINE_GIL_H_

#include <cxxabi.h>
#include <unistd.h>

#include <type_traits>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "python/engine/errors.h"
#include "python/engine/nb.h"

namespace sparseagg::python {

// Calls `function`, which may take the GIL or run Python code. Returns: what it returns.
// Blocks: for ever, if Python ends meanwhile. Up to Python 3.13, a thread that takes the GIL then ends by pthread_exit,
// which unwinds it, and the process is aborted where that meets a function of nanobind: these are noexcept. Later
// versions let such a thread hang, as this does. For the same reason no destructor releases the GIL.
template <typename Function>
decltype(auto) CallPython(const Function& function) {
  try {
    return function();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Calls `function`, which uses no Python, without the GIL. Returns: what it returns.
template <typename Function>
auto WithoutGil(const Function& function) {
  PyThreadState* const thread = PyEval_SaveThread();
  const auto restore = [thread] { CallPython([thread] { PyEval_RestoreThread(thread); }); };
  auto answer = [&] {
    try {
      return function();
    } catch (...) {
      restore();
      throw;
    }
  }();
  restore();
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
