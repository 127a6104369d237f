#include "service/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sparseagg::service {
namespace {

struct LogState {
  LogFormat format = LogFormat::kText;
  std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("sparseagg", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    return made;
  }();
};

LogState& State() {
  static LogState state;
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
}

}  // namespace sparseagg::service
