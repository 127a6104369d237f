#include "service/nearest_flag.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace sparseagg::service {
namespace {

// Returns: the optimal string alignment distance (Damerau 1964). Cost: the product of the lengths.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1);  // of a[:i - 2], where `last` is of a[:i - 1] and `row` of a[:i]
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestFlag(const CLI::App& app, absl::string_view name, bool in_file) {
  constexpr size_t kLongestName = 64;  // of all flags; the distance of a longer text takes long
  std::string nearest;
  if (name.size() > kLongestName) return nearest;
  size_t least = name.size() / 3 + 1;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || (in_file && !option->get_configurable())) continue;
    const std::string& flag = option->get_lnames().front();
    if (const size_t distance = Distance(name, flag); distance < least) {
      least = distance;
      nearest = flag;
    }
  }
  return nearest;
}

}  // namespace sparseagg::service
