// The command line of sparseagg-server.
#ifndef SPARSEAGG_SERVICE_OPTIONS_H_
#define SPARSEAGG_SERVICE_OPTIONS_H_

#include <string>
#include <variant>

#include "absl/time/time.h"
#include "service/base/log.h"
#include "service/server.h"

namespace sparseagg::service {

enum class Backend { kAuto, kCpu, kCuda };

struct Options {
  ServerOptions server;
  Backend backend = Backend::kAuto;
  int num_threads = 0;  // 0: one per core
  std::string simd;     // target of the CPU engine's kernels; empty: the best
  absl::Duration drain_delay = absl::ZeroDuration();
  absl::Duration shutdown_deadline = absl::Seconds(10);
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// What main has to do instead of serving: print and leave.
struct ExitWith {
  int code = 0;
  std::string text;  // on standard output if `code` is 0, else on standard error
};

// Reads flags, the environment (SPARSEAGG_…) and the file of --config, in falling precedence.
std::variant<Options, ExitWith> ParseOptions(int argc, const char* const* argv);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_OPTIONS_H_
