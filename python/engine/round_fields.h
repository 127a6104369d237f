// Conversion of the service's rounds and streams to Python dictionaries.
#ifndef SPARSEAGG_PYTHON_ENGINE_ROUND_FIELDS_H_
#define SPARSEAGG_PYTHON_ENGINE_ROUND_FIELDS_H_

#include <pybind11/pybind11.h>

#include "absl/strings/string_view.h"
#include "service/rounds/receipt.h"
#include "service/rounds/round.h"
#include "service/streams/stream.h"

namespace sparseagg::python {

// Returns: the fields of the proto's message for a value, by name. Messages in it are dictionaries, too; values of
// enums are names or numbers; what is unknown is absent. Requires: the GIL.
pybind11::dict Fields(const service::Receipt& receipt);
pybind11::dict Fields(const service::ListedSubmission& submission);
// `engine`: the name of the engine that merges the round.
pybind11::dict Fields(const service::Round& round, absl::string_view engine);
pybind11::dict Fields(const service::StreamVersion& version);
pybind11::dict Fields(const service::Stream& stream, const service::StreamSnapshot& snapshot);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_ROUND_FIELDS_H_
