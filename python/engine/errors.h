// Statuses as Python exceptions.
#ifndef SPARSEAGG_PYTHON_ENGINE_ERRORS_H_
#define SPARSEAGG_PYTHON_ENGINE_ERRORS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::python {

// An exception that becomes _engine.EngineError(code, message, reason, metadata) in Python.
struct StatusException {
  absl::Status status;
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException{status};
}

// Returns: the value. Throws: StatusException for an error.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_ERRORS_H_
