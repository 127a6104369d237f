#include "service/base/log.h"

#include <poll.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sparseagg::service {
namespace {

// That wait to be written: what a busy server says in a second or so, and most often less than 2 MB. Clients can have
// some lines be longer: the reason for which a round is cancelled comes to 6 KiB, if all of it has to be escaped.
constexpr size_t kMostWaitingLines = 4096;

// How long who logs an error waits for it to be written. The process may end with the error.
constexpr absl::Duration kPatienceAtErrors = absl::Seconds(1);

// The end of a wait must fit the system's clock.
constexpr absl::Duration kLongestPatience = absl::Hours(1);

// Runs on the log's own thread, the only one that ever waits for whoever reads standard error.
class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  uint64_t num_flushed() {
    std::lock_guard lock(mu_);
    return num_flushed_;
  }
  bool AwaitFlush(uint64_t more_than, absl::Duration patience) {
    std::unique_lock lock(mu_);
    return flushed_.wait_for(lock, absl::ToChronoMilliseconds(std::min(patience, kLongestPatience)),
                             [&] { return num_flushed_ > more_than; });
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t begin = 0; begin < line.size();) {
      const ssize_t written = write(STDERR_FILENO, line.data() + begin, line.size() - begin);
      if (written >= 0) {
        begin += static_cast<size_t>(written);
      } else if (errno == EAGAIN) {  // somebody else has made it so
        pollfd room{STDERR_FILENO, POLLOUT, 0};
        poll(&room, 1, -1);
      } else if (errno != EINTR) {
        return;  // nobody reads it any more
      }
    }
  }
  void flush_() override {
    std::lock_guard lock(mu_);
    ++num_flushed_;
    flushed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable flushed_;
  uint64_t num_flushed_ = 0;
};

struct LogState {
  LogFormat format = LogFormat::kText;
  std::shared_ptr<StandardError> sink = std::make_shared<StandardError>();
  std::shared_ptr<spdlog::details::thread_pool> thread =
      std::make_shared<spdlog::details::thread_pool>(kMostWaitingLines, 1);
  std::shared_ptr<spdlog::logger> logger = [this] {
    auto made = std::make_shared<spdlog::async_logger>("sparseagg", sink, thread,
                                                       spdlog::async_overflow_policy::overrun_oldest);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    return made;
  }();
};

// Never destroyed: its thread may wait for a reader for ever, and the process leaves without it.
LogState& State() {
  static LogState& state = *new LogState;
  return state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

// As JSON, which is also what text uses for values that would be hard to tell apart otherwise. Bytes that are no ASCII
// are escaped as if they were Latin-1: ids may hold anything.
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
  if (level == LogLevel::kError) FlushLog(kPatienceAtErrors);
}

bool FlushLog(absl::Duration patience) {
  const LogState& state = State();
  const uint64_t before = state.sink->num_flushed();
  state.logger->flush();
  return state.sink->AwaitFlush(before, patience);
}

uint64_t DroppedLogLines() { return State().thread->overrun_counter(); }

}  // namespace sparseagg::service
