// The settings of sparseagg-server: flags, environment and config file.
#ifndef SPARSEAGG_SERVICE_OPTIONS_H_
#define SPARSEAGG_SERVICE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/base/log.h"
#include "service/server.h"

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

// Choice of the engine. kAuto: CUDA if a GPU works, else the CPU.
enum class Backend { kAuto, kCpu, kCuda };

// All settings of the process.
struct Options {
  ServerOptions server;
  Backend backend = Backend::kAuto;
  std::string cuda_plugin;                               // LoadCudaEngine; empty: beside the program
  int gpu_devices = 1;                                   // the first ones; 0: all
  uint64_t gpu_memory_bytes = 0;                         // at most, on each; 0: nine tenths of what is free
  int num_threads = 0;                                   // 0: one per core
  std::string simd;                                      // target of the CPU engine's kernels; empty: the best
  absl::Duration drain_delay = absl::ZeroDuration();     // between SIGTERM and the end of new rounds
  absl::Duration shutdown_deadline = absl::Seconds(10);  // for calls in progress, after drain_delay
  std::string owners_file;                               // SignalWithoutOwners; empty: none
  std::string dev_tls;                                   // folder of MakeDevCertificates; empty: none
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// The order to print `text` and exit in place of serving: for --help, --version and bad settings.
struct ExitWith {
  int code = 0;
  std::string text;  // for standard output if `code` is 0, else for standard error
};

// Parses the flags, the environment (SPARSEAGG_…) and the file of --config, with precedence in this order.
// Returns: the settings, or an order to exit.
std::variant<Options, ExitWith> ParseOptions(int argc, const char* const* argv);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_OPTIONS_H_
