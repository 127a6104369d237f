// The file of flags.
#ifndef SPARSEAGG_SERVICE_CONFIG_FILE_H_
#define SPARSEAGG_SERVICE_CONFIG_FILE_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

namespace sparseagg::service {

// Reads TOML: flags without their dashes, each a string, a number, true or false. CLI11's own parser takes a list for
// its element and a bare word for a flag that is set.
//
// CLI11 reads the file before the environment, and what is set first stays. So what the environment sets is left out.
class ConfigFile final : public CLI::Config {
 public:
  // `app` must outlive this.
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  // Throws CLI::ConfigError with the file and the line of what is wrong.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  // Nothing: there is no flag that would write a file.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

 private:
  const CLI::App& app_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CONFIG_FILE_H_
