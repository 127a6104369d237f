#include "tools/loadgen/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sparseagg::bench {

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

std::string NumbersJson(const std::vector<double>& values) {
  const auto format = [](std::string* out, double value) { absl::StrAppendFormat(out, "%.6f", value); };
  return absl::StrCat("[", absl::StrJoin(values, ", ", format), "]");
}

std::string LatencyJson(const std::vector<double>& seconds) {
  return absl::StrFormat(R"({"count": %d, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f})",
                         seconds.size(), 1e3 * Percentile(seconds, 0.5), 1e3 * Percentile(seconds, 0.9),
                         1e3 * Percentile(seconds, 0.99), 1e3 * Percentile(seconds, 1));
}

std::string RefusedJson(const std::map<int, Refusals>& refused) {
  const auto format = [](std::string* out, const auto& entry) {
    absl::StrAppendFormat(out, R"({"code": %d, "count": %d, "first_message": %s})", entry.first, entry.second.count,
                          StringJson(entry.second.first_message));
  };
  return absl::StrCat("[", absl::StrJoin(refused, ", ", format), "]");
}

std::string StringJson(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace sparseagg::bench
