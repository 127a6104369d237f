#include "service/base/fail_point.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace sparseagg::service {
namespace {

struct Armed {
  std::string name;  // empty: none
  int64_t hits = 1;  // N: the call that kills; 1 if the text has no number
};

Armed ReadEnvironment() {
  Armed armed;
  const char* const text = std::getenv("SPARSEAGG_FAIL_POINT");
  if (text == nullptr) return armed;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  armed.name = parts.first;
  if (!absl::SimpleAtoi(parts.second, &armed.hits)) armed.hits = 1;
  return armed;
}

}  // namespace

void FailPoint(const char* name) {
  static const Armed armed = ReadEnvironment();
  static std::atomic<int64_t> hits{0};
  if (armed.name == name && ++hits == armed.hits) kill(getpid(), SIGKILL);
}

}  // namespace sparseagg::service
