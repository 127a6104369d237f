#include "bench/common/machine.h"

#include <chrono>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sparseagg::bench {
namespace {

// Returns: the value of `name` in a file of "name: value" lines; empty if there is none.
std::string Field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() == 2) return std::string(absl::StripAsciiWhitespace(parts[1]));
  }
  return "";
}

}  // namespace

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string Today() { return absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()); }

std::string CpuName() {
  const char* const info = "/proc/cpuinfo";
  std::string name = Field(info, "model name");
  // Virtual machines often name the maker only; family and model tell processors apart.
  const std::string family = Field(info, "cpu family");
  if (!family.empty()) absl::StrAppend(&name, ", family ", family, ", model ", Field(info, "model"));
  return name;
}

}  // namespace sparseagg::bench
