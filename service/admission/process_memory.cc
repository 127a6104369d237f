#include "service/admission/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sparseagg::service {

uint64_t ProcessMemory(const std::string& root) {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  const auto consider = [&](const std::string& path) {
    uint64_t limit = 0;  // unchanged if the file says "max"
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  };
  // Each line is number:controllers:path; cgroup v2 leaves the controllers empty. In a container the path is often "/",
  // or the path on the host, and the container's own group is mounted at the top. So the top counts in any case.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool is_v2 = fields[1].empty();
    if (!is_v2 && fields[1] != "memory") continue;
    const std::string top = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const std::string file = is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = fields[2]; absl::StartsWith(path, "/"); path.resize(path.rfind('/'))) {
      consider(absl::StrCat(top, path, file));
    }
    consider(absl::StrCat(top, file));
  }
  return bytes;
}

uint64_t ResidentBytes() {
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace sparseagg::service
