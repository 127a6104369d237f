// The parser of the config file.
#ifndef SPARSEAGG_SERVICE_CONFIG_FILE_H_
#define SPARSEAGG_SERVICE_CONFIG_FILE_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Returns: the name of the flag of `app` that differs from `name` in the fewest characters: left out, added, replaced,
// or exchanged with the next one. Empty if more than a third of them differ. Names are without dashes before them.
// `in_file`: only flags that a config file may set.
std::string NearestFlag(const CLI::App& app, absl::string_view name, bool in_file);

// A CLI11 configuration in TOML: the keys are flags without dashes, the values are strings, numbers, true or false.
// CLI11's own parser would accept a list as its element, and a bare word as a flag that is set.
//
// CLI11 reads the file before the environment, and the first value of a flag stays. So the parser leaves out keys that
// the environment sets.
class ConfigFile final : public CLI::Config {
 public:
  // `app` must outlive this.
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  // Errors: throws CLI::ConfigError with the file and line of the mistake.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  // Required by CLI11. No flag writes a config file.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

 private:
  const CLI::App& app_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CONFIG_FILE_H_
