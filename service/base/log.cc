#include "service/base/log.h"

#include <poll.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {
namespace {

// Capacity of the queue: the lines of a busy server in about a second, mostly less than 2 MB. Clients can cause some
// longer lines: the reason of a cancelled round has up to 6 KiB when every byte is escaped.
constexpr size_t kQueueLines = 4096;

// The process may end after an error, so an error waits this long to be written.
constexpr absl::Duration kErrorFlushTimeout = absl::Seconds(1);

// Writes lines to standard error. Runs on the log's thread, the only thread that waits for a reader.
class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  uint64_t num_flushed() {
    MutexLock lock(&mu_);
    return num_flushed_;
  }
  // Returns: false if `timeout` passed before there were more than `count` flushes.
  bool AwaitFlush(uint64_t count, absl::Duration timeout) {
    const absl::Duration deadline = SystemClock().Monotonic() + timeout;
    MutexLock lock(&mu_);
    while (num_flushed_ <= count) {
      const absl::Duration left = deadline - SystemClock().Monotonic();
      if (left <= absl::ZeroDuration()) return false;
      flushed_.WaitWithTimeout(&mu_, left);
    }
    return true;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t begin = 0; begin < line.size();) {
      const ssize_t written = write(STDERR_FILENO, line.data() + begin, line.size() - begin);
      if (written >= 0) {
        begin += static_cast<size_t>(written);
      } else if (errno == EAGAIN) {  // another process has made the descriptor non-blocking
        pollfd room{STDERR_FILENO, POLLOUT, 0};
        poll(&room, 1, -1);
      } else if (errno != EINTR) {
        return;  // the reader is gone
      }
    }
  }
  void flush_() override {
    MutexLock lock(&mu_);
    ++num_flushed_;
    flushed_.SignalAll();
  }

  Mutex mu_;
  CondVar flushed_;
  uint64_t num_flushed_ ABSL_GUARDED_BY(mu_) = 0;
};

struct LogState {
  LogFormat format = LogFormat::kText;
  std::shared_ptr<StandardError> sink = std::make_shared<StandardError>();
  std::shared_ptr<spdlog::details::thread_pool> thread = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  std::shared_ptr<spdlog::logger> logger = [this] {
    auto made = std::make_shared<spdlog::async_logger>("sparseagg", sink, thread,
                                                       spdlog::async_overflow_policy::overrun_oldest);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    return made;
  }();
};

// Never destroyed: the log's thread may wait for a reader for ever, and the process exits without it.
LogState& State() {
  static LogState& state = *new LogState;
  return state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err, spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

// Returns: a JSON string; text lines use it for values that are not plain. Escapes bytes beyond ASCII as if they were
// Latin-1, because ids may hold any bytes.
std::string Quote(absl::string_view value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Returns: whether a text line can show `value` without quotes.
bool IsPlain(absl::string_view value) {
  for (const char c : value) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)) || c == '"' || c == '\\' || c == '=') return false;
  }
  return !value.empty();
}

std::string FormatValue(LogFormat format, const LogField& field) {
  if (const auto* text = std::get_if<absl::string_view>(&field.value())) {
    return format == LogFormat::kText && IsPlain(*text) ? std::string(*text) : Quote(*text);
  }
  if (const auto* integer = std::get_if<int64_t>(&field.value())) return absl::StrCat(*integer);
  return absl::StrFormat("%.3f", std::get<double>(field.value()));
}

}  // namespace

std::string FormatLogLine(LogFormat format, absl::string_view event, std::initializer_list<LogField> fields) {
  const bool json = format == LogFormat::kJson;
  std::string line = json ? absl::StrCat("\"event\":", Quote(event)) : std::string(event);
  for (const LogField& field : fields) {
    if (json) {
      absl::StrAppend(&line, ",", Quote(field.key()), ":", FormatValue(format, field));
    } else {
      absl::StrAppend(&line, " ", field.key(), "=", FormatValue(format, field));
    }
  }
  return line;
}

void ConfigureLog(LogLevel level, LogFormat format) {
  LogState& state = State();
  state.format = format;
  state.logger->set_level(ToSpdlog(level));
  if (format == LogFormat::kJson) {
    state.logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
  }
}

bool IsLogged(LogLevel level) { return State().logger->should_log(ToSpdlog(level)); }

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  if (!IsLogged(level)) return;
  const LogState& state = State();
  const std::string line = FormatLogLine(state.format, event, fields);
  state.logger->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  if (level == LogLevel::kError) FlushLog(kErrorFlushTimeout);
}

bool FlushLog(absl::Duration timeout) {
  const LogState& state = State();
  const uint64_t before = state.sink->num_flushed();
  state.logger->flush();
  return state.sink->AwaitFlush(before, timeout);
}

uint64_t DroppedLogLines() { return State().thread->overrun_counter(); }

}  // namespace sparseagg::service
