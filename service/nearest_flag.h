// The flag that a mistyped one was meant to be.
#ifndef SPARSEAGG_SERVICE_NEAREST_FLAG_H_
#define SPARSEAGG_SERVICE_NEAREST_FLAG_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Returns: the name of the flag of `app` that differs from `name` in the fewest characters: left out, added, replaced,
// or exchanged with the next one. Empty if more than a third of them differ. Names are without dashes before them.
// `in_file`: only flags that a config file may set.
std::string NearestFlag(const CLI::App& app, absl::string_view name, bool in_file);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NEAREST_FLAG_H_
