#include "bench/common/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "host/base/column.h"

namespace sparseagg::bench {
namespace {

constexpr size_t kBytes = size_t{256} << 20;
constexpr int kPasses = 7;

template <typename Pass>
double MedianSeconds(Pass pass) {
  std::vector<double> seconds;
  for (int i = 0; i < kPasses; ++i) {
    const double start = Now();
    pass();
    seconds.push_back(Now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kPasses / 2, seconds.end());
  return seconds[kPasses / 2];
}

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

MemorySpeed MeasureMemory() {
  Column<uint64_t> from(kBytes / sizeof(uint64_t));
  Column<uint64_t> to(kBytes / sizeof(uint64_t));
  for (size_t i = 0; i < from.size(); ++i) from[i] = i * 0x9e3779b97f4a7c15u;
  std::memset(to.data(), 1, kBytes);
  volatile uint64_t sink = 0;
  MemorySpeed speed;
  speed.read_bytes_per_s = kBytes / MedianSeconds([&] {
                             uint64_t sums[8] = {};
                             for (size_t i = 0; i < from.size(); i += 8) {
                               for (size_t lane = 0; lane < 8; ++lane) sums[lane] += from[i + lane];
                             }
                             for (const uint64_t sum : sums) sink = sink + sum;
                           });
  speed.memcpy_bytes_per_s = kBytes / MedianSeconds([&] {
                               std::memcpy(to.data(), from.data(), kBytes);
                               sink = sink + to[from[1] % to.size()];
                             });
  return speed;
}

std::string CpuName() {
  const char* const info = "/proc/cpuinfo";
  std::string name = Field(info, "model name");
  // Virtual machines often name the maker only; family and model tell processors apart.
  const std::string family = Field(info, "cpu family");
  if (!family.empty()) absl::StrAppend(&name, ", family ", family, ", model ", Field(info, "model"));
  return name;
}

uint64_t PeakMemoryBytes() {
  const std::string text = Field("/proc/self/status", "VmHWM");
  const std::vector<std::string> parts = absl::StrSplit(text, ' ', absl::SkipEmpty());
  uint64_t kib = 0;
  if (parts.empty() || !absl::SimpleAtoi(parts[0], &kib)) return 0;
  return kib * 1024;
}

bool ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  return file.good();
}

}  // namespace sparseagg::bench
