// The structured log: events with fields, as key=value text or as JSON lines.
#ifndef SPARSEAGG_SERVICE_BASE_LOG_H_
#define SPARSEAGG_SERVICE_BASE_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// A named value of a log line. Borrows strings for the duration of the Log call. Writes durations in milliseconds.
class LogField {
 public:
  LogField(absl::string_view key, absl::string_view value) : key_(key), value_(value) {}
  LogField(absl::string_view key, const std::string& value) : LogField(key, absl::string_view(value)) {}
  LogField(absl::string_view key, const char* value) : LogField(key, absl::string_view(value)) {}
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  LogField(absl::string_view key, T value) : key_(key), value_(static_cast<int64_t>(value)) {}
  LogField(absl::string_view key, absl::Duration value) : key_(key), value_(absl::ToDoubleMilliseconds(value)) {}

  absl::string_view key() const { return key_; }
  const std::variant<absl::string_view, int64_t, double>& value() const { return value_; }

 private:
  absl::string_view key_;
  std::variant<absl::string_view, int64_t, double> value_;
};

// Sets level and format, which are kInfo and kText by default. Lines go to standard error, on a thread that the first
// use of the log starts and that inherits the signal mask of its starter.
// Requires: no other thread logs yet.
void ConfigureLog(LogLevel level, LogFormat format);

// Returns: whether lines of `level` are written. For callers whose fields are costly to make.
bool IsLogged(LogLevel level);

// Queues a line for the log's thread. `event` is a fixed lower_case name. A full queue drops its oldest lines.
// Blocks: never for a slow reader of the log, except that an error waits up to a second to be written.
// Cost: one comparison if the level is off. Thread-safe.
void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

// Waits until the lines logged so far are written. Of two concurrent callers, the later one may return with the flush
// of the earlier one. Returns: false if `timeout` passed first. Blocks: for `timeout` at most.
bool FlushLog(absl::Duration timeout);

// Returns: the number of lines dropped since the start, because standard error was not read in time.
uint64_t DroppedLogLines();

// Returns: the line as Log writes it, without the time and level that Log adds. For tests.
std::string FormatLogLine(LogFormat format, absl::string_view event, std::initializer_list<LogField> fields);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_LOG_H_
