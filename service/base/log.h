// Structured logs: an event and its fields, as key=value text or as JSON lines.
#ifndef SPARSEAGG_SERVICE_BASE_LOG_H_
#define SPARSEAGG_SERVICE_BASE_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// One named value. Strings are borrowed for the call. Durations are written in milliseconds.
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

// Logs go to standard error, by a thread that the first use starts and that has its signals blocked or not as that one
// has. Before this is called: kInfo, as text. Call it before other threads log.
void ConfigureLog(LogLevel level, LogFormat format);

// Whether such lines are written: for whom it costs something to say what is in them.
bool IsLogged(LogLevel level);

// `event` is a fixed lower_case name. Thread-safe; cheap when the level is off. Waits for nobody who reads the log, but
// a second for what is an error: if thousands of lines wait to be written, the oldest are dropped.
void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

// Until what has been logged is written; who asks while another does may get the other's answer, which says less.
// False: it took longer than `patience`.
bool FlushLog(absl::Duration patience);

// So far, for want of a reader.
uint64_t DroppedLogLines();

// The line without time and level, which Log adds: for tests.
std::string FormatLogLine(LogFormat format, absl::string_view event, std::initializer_list<LogField> fields);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_LOG_H_
