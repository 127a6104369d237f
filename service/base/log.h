// The structured log: events with fields, as key=value text or as JSON lines. And what else an operator is told.
#ifndef SPARSEAGG_SERVICE_BASE_LOG_H_
#define SPARSEAGG_SERVICE_BASE_LOG_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

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

// At most kLinesPerSecond lines a second; the next line tells how many were left out. Thread-safe.
class LineLimit {
 public:
  static constexpr int kLinesPerSecond = 10;

  explicit LineLimit(const Clock* clock) : clock_(*clock) {}  // borrowed

  // Returns: the number of lines left out since the last one; nullopt: leave this one out, too.
  std::optional<uint64_t> TryTake() {
    MutexLock lock(&mu_);
    const absl::Duration now = clock_.Monotonic();
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      num_lines_ = 0;
    }
    if (num_lines_ == kLinesPerSecond) {
      ++num_omitted_;
      return std::nullopt;
    }
    ++num_lines_;
    return std::exchange(num_omitted_, 0);
  }

 private:
  const Clock& clock_;
  Mutex mu_;
  absl::Duration second_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();  // the start of the current one
  int num_lines_ ABSL_GUARDED_BY(mu_) = 0;                                  // in the current second
  uint64_t num_omitted_ ABSL_GUARDED_BY(mu_) = 0;                           // since the last line
};

// The texts of ServerInfo.warnings, which a start collects. Thread-safe.
class Warnings {
 public:
  void Add(std::string text) {
    MutexLock lock(&mu_);
    texts_.push_back(std::move(text));
  }
  std::vector<std::string> List() const {
    MutexLock lock(&mu_);
    return texts_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
};

// Returns: a thread that runs `task`; one that is not joinable, with a line in the log, if the system starts no more.
inline std::thread TryThread(std::function<void()> task) {
  try {
    return std::thread(std::move(task));
  } catch (const std::system_error& error) {
    Log(LogLevel::kWarning, "no_thread", {{"reason", error.what()}});
    return {};
  }
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_LOG_H_
