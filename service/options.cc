#include "service/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "service/admission/memory_shares.h"
#include "service/admission/process_memory.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

std::string EnvName(absl::string_view option) {
  return absl::StrCat("SPARSEAGG_", absl::AsciiStrToUpper(absl::StrReplaceAll(option, {{"-", "_"}})));
}

// CLI11 would parse -1 as 2^64 - 1.
std::optional<uint64_t> ParseCount(const std::string& text) {
  uint64_t count = 0;
  return absl::SimpleAtoi(text, &count) ? std::optional(count) : std::nullopt;
}

// Accepts no "GB", which means 1000³ to some people and 1024³ to others.
std::optional<uint64_t> ParseBytes(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<uint64_t> number = ParseCount(text.substr(0, digits));
  absl::string_view unit = absl::string_view(text).substr(digits);
  if (!number.has_value()) return std::nullopt;
  if (unit.empty()) return number;
  absl::ConsumePrefix(&unit, " ");
  constexpr absl::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  for (int power = 1; power <= 4; ++power) {
    if (unit != kUnits[power - 1]) continue;
    const bool fits = *number <= (std::numeric_limits<uint64_t>::max() >> (10 * power));
    return fits ? std::optional(*number << (10 * power)) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<uint64_t> ParseMemoryLimit(const std::string& text) {
  const std::optional<uint64_t> bytes = ParseBytes(text);
  return bytes == 0u || bytes >= kMinMemoryLimitBytes ? bytes : std::nullopt;
}

// Parses a time such as "1.5s"; a bare number is seconds.
std::optional<absl::Duration> ParseTime(const std::string& text) {
  double seconds = 0;
  absl::Duration time;
  if (absl::SimpleAtod(text, &seconds)) {
    time = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &time)) {
    return std::nullopt;
  }
  const bool sensible = time >= absl::ZeroDuration() && time < absl::Hours(24 * 366 * 100);
  return sensible ? std::optional(time) : std::nullopt;
}

// Parses a timeout, which must not be zero.
std::optional<absl::Duration> ParsePositiveTime(const std::string& text) {
  const std::optional<absl::Duration> time = ParseTime(text);
  return time > absl::ZeroDuration() ? time : std::nullopt;
}

// Whether a path is the directory, or in it. A data directory may have files of the server only.
bool IsWithin(const std::string& path, const std::string& directory) {
  const auto whole = [](const std::string& text) {
    std::error_code ignored;
    const auto absolute = std::filesystem::absolute(text, ignored);
    return (std::filesystem::weakly_canonical(absolute, ignored) / "").parent_path();  // without a slash at the end
  };
  return *whole(path).lexically_relative(whole(directory)).begin() != "..";
}

// Adds options with their environment variables to a CLI11 app.
class Adder {
 public:
  explicit Adder(CLI::App& app) : app_(app) {}

  template <typename T>
  CLI::Option* Add(const std::string& name, T& variable, const std::string& help) {
    return app_.add_option("--" + name, variable, help)->capture_default_str()->envname(EnvName(name));
  }
  // Adds an option whose empty value is an error: a script whose variable is not set would start a server without the
  // credentials or the data that it was to have.
  void AddText(const std::string& name, std::string& variable, const std::string& help) {
    const auto check = [](std::string& text) {
      return std::string(text.empty() ? "the value is empty; leave the flag out instead" : "");
    };
    Add(name, variable, help)->check(CLI::Validator(check, ""));
  }
  void AddFlag(const std::string& name, bool& variable, const std::string& help) {
    app_.add_flag("--" + name, variable, help)->envname(EnvName(name));
  }
  void AddCount(const std::string& name, uint64_t& variable, const std::string& help) {
    AddParsed(name, &ParseCount, variable, help, "N", absl::StrCat(variable), "count");
  }
  void AddBytes(const std::string& name, uint64_t& variable, const std::string& help) {
    AddParsed(name, &ParseBytes, variable, help, "BYTES", absl::StrCat(variable),
              "size in bytes such as 4096, or in KiB, MiB, GiB or TiB such as 4GiB");
  }
  void AddMemoryLimit(const std::string& name, uint64_t& variable, const std::string& help) {
    AddParsed(name, &ParseMemoryLimit, variable, help, "BYTES", absl::StrCat(variable),
              "memory limit: 256MiB or more, in bytes, KiB, MiB, GiB or TiB, or 0 for no limit");
  }
  void AddTime(const std::string& name, absl::Duration& variable, const std::string& help) {
    AddParsed(name, &ParseTime, variable, help, "TIME", absl::FormatDuration(variable),
              "time such as 90, 1.5s, 250ms, 2m or 1h");
  }
  void AddPositiveTime(const std::string& name, absl::Duration& variable, const std::string& help) {
    AddParsed(name, &ParsePositiveTime, variable, help, "TIME", absl::FormatDuration(variable),
              "time above zero such as 90, 1.5s, 250ms, 2m or 1h");
  }
  // The first of `choices` is the default.
  template <typename T>
  CLI::Option* AddChoice(const std::string& name, T& variable, const std::vector<std::pair<std::string, T>>& choices,
                         const std::string& help) {
    std::vector<std::string> names;
    names.reserve(choices.size());
    for (const auto& [choice, value] : choices) names.push_back(choice);
    const auto choose = [&variable, choices](const std::string& text) {
      for (const auto& [choice, value] : choices) {
        if (choice == text) variable = value;
      }
    };
    return app_.add_option_function<std::string>("--" + name, choose, help)
        ->check(CLI::IsMember(names))
        ->default_str(names.front())
        ->envname(EnvName(name));
  }

 private:
  template <typename T>
  void AddParsed(const std::string& name, std::optional<T> (*parse)(const std::string&), T& variable,
                 const std::string& help, const std::string& type, const std::string& shown_default,
                 const std::string& expected) {
    const auto set = [name, parse, &variable, expected](const std::string& text) {
      const std::optional<T> value = parse(text);
      if (!value.has_value()) throw CLI::ValidationError("--" + name, "'" + text + "' is not a " + expected);
      variable = *value;
    };
    app_.add_option_function<std::string>("--" + name, set, help)
        ->type_name(type)
        ->default_str(shown_default)
        ->envname(EnvName(name));
  }

  CLI::App& app_;
};

// Returns: what is wrong with the first argument that looks like a flag and is none; empty if there is none.
std::string UnknownFlag(const CLI::App& app) {
  for (const std::string& argument : app.remaining()) {
    const absl::string_view flag = absl::string_view(argument).substr(0, argument.find('='));
    const absl::string_view name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    if (name.empty() || name.size() == flag.size()) continue;
    const std::string nearest = NearestFlag(app, name, /*in_file=*/false);
    return absl::StrCat("unknown flag ", flag, nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?"),
                        "\nRun with --help for more information.\n");
  }
  return "";
}

void AddLimits(Adder& add, Limits& limits) {
  add.AddMemoryLimit(
      "memory-limit", limits.memory_limit_bytes,
      "resident memory of the process, kept to within a tenth; 256MiB or more, 0: no limit. By default three quarters "
      "of the memory of the machine or container");
  add.AddBytes("max-message-bytes", limits.max_message_bytes,
               "largest request message, and so largest chunk; 0: no limit");
  add.AddBytes("max-page-bytes", limits.max_page_bytes, "largest result page; 0: no limit");
  add.AddCount("max-open-rounds", limits.max_open_rounds, "rounds open at once; 0: no limit");
  add.AddCount("max-tensors", limits.max_tensors, "tensors in a round; 0: no limit");
  add.AddCount("max-row-width", limits.max_row_width, "values per row of a tensor; 0: no limit");
  add.AddCount("max-submissions", limits.max_submissions, "submissions in a round; 0: no limit");
  add.AddCount("max-tuples-per-submission", limits.max_tuples_per_submission,
               "tuples in a submission, over all tensors; 0: no limit");
  add.AddBytes("max-bytes-per-submission", limits.max_bytes_per_submission,
               "decoded keys and values of a submission; 0: no limit");
  add.AddPositiveTime("max-result-ttl", limits.max_result_ttl,
                      "longest time that an ended round is kept, and the default");
  add.AddTime("max-wait", limits.max_wait, "longest wait of WaitRound and LeaseTask, and the default");
  add.AddPositiveTime("upload-timeout", limits.upload_timeout,
                      "time without a new chunk after which an upload is discarded");
  add.AddCount("max-uploads", limits.max_uploads, "uploads open at once; 0: no limit");
  add.AddCount("max-open-tasks", limits.max_open_tasks, "tasks that have not ended; 0: no limit");
  add.AddBytes("max-task-bytes", limits.max_task_bytes, "payload of a task, and result of a task; 0: no limit");
  add.AddCount("max-waiting-leases", limits.max_waiting_leases,
               "LeaseTask calls that wait; lowered to what memory allows; 0: only that limit");
  add.AddPositiveTime("max-lease", limits.max_lease, "longest lease of a task");
  add.AddCount("max-open-rounds-per-tenant", limits.max_open_rounds_per_tenant,
               "rounds of one tenant open at once; 0: no limit of its own");
  add.AddBytes("max-memory-per-tenant", limits.max_memory_per_tenant,
               "memory that the rounds of one tenant keep: uploads, submissions and results; 0: no limit of its own");
  add.AddCount("max-uploads-per-tenant", limits.max_uploads_per_tenant,
               "uploads of one tenant open at once; 0: no limit of its own");
  add.AddCount("max-transfers-per-tenant", limits.max_transfers_per_tenant,
               "calls of one tenant at once that carry chunks, pages of results or long answers; 0: no limit of its "
               "own");
  add.AddCount("max-submissions-per-second-per-tenant", limits.max_submissions_per_second_per_tenant,
               "uploads that one tenant may begin in a second; 0: no limit");
  add.AddCount(
      "max-connections", limits.max_connections,
      "connections open at once; lowered to what the limits on memory and open files allow; 0: only those limits");
}

}  // namespace

std::variant<Options, ExitWith> ParseOptions(int argc, const char* const* argv) {
  Options options;
  options.server.limits.memory_limit_bytes = DefaultMemoryLimit(ProcessMemory());
  options.server.metrics_address = "127.0.0.1:8002";
  options.server.http.address = "127.0.0.1:8003";
  CLI::App app("Merges sparse updates of many clients into one sparse vector per tensor.", "sparseagg-server");
  app.set_version_flag("--version", std::string("sparseagg-server ") + kVersion);
  app.config_formatter(std::make_shared<ConfigFile>(app));
  // Read here: CLI11 looks up the variable of --config only after it has read the config file.
  const char* config = std::getenv("SPARSEAGG_CONFIG");
  const std::string config_path = config == nullptr ? "" : config;
  app.set_config("--config", config_path, "TOML file with flags as keys, without dashes; Env:SPARSEAGG_CONFIG",
                 /*config_required=*/!config_path.empty());
  app.footer(
      "Every flag may be set in the environment as SPARSEAGG_NAME and in the config file as name.\n"
      "A flag takes precedence over the environment, and the environment over the file.");

  Adder add(app);
  add.Add("grpc-address", options.server.grpc_address, "HOST:PORT (port 0: any free one) or unix:PATH");
  CLI::Option* metrics_address = add.Add("metrics-address", options.server.metrics_address,
                                         "HOST:PORT for GET /metrics, /healthz and /readyz, or none. If the default "
                                         "port is in use, the server starts without them");
  CLI::Option* http_address =
      add.Add("http-address", options.server.http.address,
              "HOST:PORT of the HTTP gateway and the status page, or none. If the default port is in use, the server "
              "starts without it");
  add.Add(
      "http-origins", options.server.http.origins,
      "origins of other web pages that may call the gateway, with commas: https://app.example.org; *: all. Patterns "
      "are refused");
  add.AddCount("max-http-connections", options.server.http.max_connections,
               "connections of the gateway open at once; lowered to what the limits on memory and open files allow");
  add.AddCount("max-http-connections-per-address", options.server.http.max_connections_per_address,
               "connections of the gateway open at once from one address, at most half of all; 0: half of all");
  add.AddText(
      "tokens-file", options.server.tokens_file,
      "bearer tokens, one line each: SHA-256 of the token, role, tenant, name or -, end of validity; read again when "
      "it changes. 'sparseagg keys' writes it");
  add.AddText(
      "jwt-key", options.server.jwt.key_file,
      "PEM file of the public key of an issuer of JSON Web Tokens, which are then bearer tokens, too; read again when "
      "it changes");
  add.AddText("jwt-algorithm", options.server.jwt.algorithm,
              "RS256, ES256 or EdDSA; tokens of another one are refused");
  add.AddText("jwt-issuer", options.server.jwt.issuer, "the claim iss of these tokens");
  add.AddText("jwt-audience", options.server.jwt.audience, "the claim aud of these tokens, or one of its values");
  add.AddText("noise-key-file", options.server.noise_key_file,
              "experimental: secret of the noise of rounds with privacy, 32 random bytes or more, which no reader of "
              "results may know. Without it such rounds are refused. Keep it as long as the data directory");
  add.AddText(
      "certificate-key", options.server.certificate_key,
      "PEM file of the Ed25519 private key that signs certificates of rounds; read again when it changes. Without "
      "it rounds whose spec asks for a certificate are refused");
  add.AddText("tls-certificate", options.server.tls.certificate,
              "PEM file of the server's certificate and its issuers; read again when it changes");
  add.AddText("tls-key", options.server.tls.key, "PEM file of the certificate's private key");
  add.AddText("tls-client-ca", options.server.tls.client_ca,
              "PEM file of the authorities that sign client certificates, which every client must have then");
  add.AddText(
      "dev-tls", options.dev_tls,
      "for trying TLS: a folder, filled with a new authority and certificates unless it has them, whose server.pem "
      "and server.key are used");
  add.AddFlag("insecure", options.server.insecure,
              "allow addresses that other machines can reach, without TLS or without authentication");
  add.AddChoice<Backend>("backend", options.backend,
                         {{"auto", Backend::kAuto}, {"cpu", Backend::kCpu}, {"cuda", Backend::kCuda}},
                         "engine; auto: cuda if a GPU works, else cpu");
  add.AddText(
      "cuda-plugin", options.cuda_plugin,
      "library with the CUDA engine; none: the engine of this program if it has one, else the library beside it");
  add.Add("gpu-devices", options.gpu_devices,
          "GPUs that the CUDA engine uses, the first ones that CUDA_VISIBLE_DEVICES leaves; 0: all")
      ->check(CLI::Range(0, 64));
  add.AddBytes("gpu-memory", options.gpu_memory_bytes,
               "memory that the CUDA engine takes on each GPU; 0: nine tenths of what is free at the start");
  add.Add("threads", options.num_threads, "worker threads; 0: one per core")->check(CLI::Range(0, 1024));
  add.Add("simd", options.simd,
          "SIMD target of the CPU engine such as AVX2, for comparisons; empty: the best of this CPU");
  add.AddText("data-dir", options.server.data_dir,
              "directory of rounds and submissions, which then survive a restart; made if it is missing");
  CLI::Option* durability = add.AddChoice<Durability>(
      "durability", options.server.durability,
      {{"sync", Durability::kSync}, {"async", Durability::kAsync}, {"memory", Durability::kMemory}},
      "with --data-dir: sync: what is acknowledged survives a power failure; async: the end of the process; memory: "
      "nothing is written");
  add.AddText("backup-dir", options.server.backup_dir,
              "directory for backups of --data-dir, which 'sparseagg backup' asks for; made if it is missing");
  AddLimits(add, options.server.limits);
  add.AddTime("drain-delay", options.drain_delay,
              "time after SIGTERM in which the server still serves, but health says NOT_SERVING");
  add.AddTime("shutdown-deadline", options.shutdown_deadline,
              "time after the drain delay in which calls in progress may finish");
  add.AddText(
      "owners-file", options.owners_file,
      "stop, as by SIGTERM, when no other process holds a record lock (fcntl) on this file; for programs that start "
      "a server of their own");
  add.AddChoice<LogLevel>("log-level", options.log_level,
                          {{"info", LogLevel::kInfo},
                           {"debug", LogLevel::kDebug},
                           {"warning", LogLevel::kWarning},
                           {"error", LogLevel::kError},
                           {"off", LogLevel::kOff}},
                          "lowest level logged to standard error");
  add.AddChoice<LogFormat>("log-format", options.log_format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
                           "key=value text or JSON lines");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool has_extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    if (std::string text = has_extras ? UnknownFlag(app) : ""; !text.empty()) {
      return ExitWith{error.get_exit_code(), std::move(text)};
    }
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    return ExitWith{code, code == 0 ? out.str() : err.str()};
  }
  if (const CLI::Option* file = app.get_config_ptr(); file->count() > 0 && file->as<std::string>().empty()) {
    return ExitWith{
        static_cast<int>(CLI::ExitCodes::ValidationError),
        "--config: the value is empty; leave the flag out instead\nRun with --help for more information.\n"};
  }
  if (options.server.data_dir.empty() && options.server.durability != Durability::kMemory) {
    return ExitWith{static_cast<int>(CLI::ExitCodes::ValidationError),
                    "--durability: async and sync need --data-dir\nRun with --help for more information.\n"};
  }
  if (!options.server.data_dir.empty() && durability->count() == 0) options.server.durability = Durability::kSync;
  if (const std::string& folder = options.server.backup_dir; !folder.empty()) {
    const bool has_data = !options.server.data_dir.empty();
    if (!has_data || IsWithin(folder, options.server.data_dir)) {
      return ExitWith{static_cast<int>(CLI::ExitCodes::ValidationError),
                      absl::StrCat("--backup-dir: ", has_data ? "is inside of --data-dir" : "needs --data-dir",
                                   "\nRun with --help for more information.\n")};
    }
  }
  if (!options.dev_tls.empty()) {
    if (options.server.tls.certificate.empty()) options.server.tls.certificate = options.dev_tls + "/server.pem";
    if (options.server.tls.key.empty()) options.server.tls.key = options.dev_tls + "/server.key";
  }
  options.server.metrics_optional = metrics_address->count() == 0;
  options.server.http_optional = http_address->count() == 0;
  if (options.server.http.address == "none") options.server.http.address.clear();
  // "none" is a word, because CLI11 ignores an empty environment variable.
  if (options.server.metrics_address == "none") options.server.metrics_address.clear();
  // Submissions are numbered in 32 bits.
  uint64_t& max_submissions = options.server.limits.max_submissions;
  constexpr uint64_t kMaxSubmissions = std::numeric_limits<uint32_t>::max();
  max_submissions = max_submissions == 0 ? kMaxSubmissions : std::min(max_submissions, kMaxSubmissions);
  if (options.num_threads == 0) options.num_threads = std::max(1u, std::thread::hardware_concurrency());
  options.server.num_threads = options.num_threads;
  return options;
}

}  // namespace sparseagg::service
