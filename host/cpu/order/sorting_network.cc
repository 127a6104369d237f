#include "host/cpu/order/sorting_network.h"

#include <algorithm>

namespace sparseagg::cpu {

std::vector<Comparator> SelectingNetwork(size_t count, absl::Span<const uint64_t> ranks) {
  const size_t run = RunOf(count);
  const size_t sorted = run == 0 ? 0 : count / run * run;  // values in whole runs
  std::vector<Comparator> network;
  ForSortingNetwork(count, [&](Comparator comparator, size_t phase) {
    if (phase >= run || comparator.high >= sorted) network.push_back(comparator);
  });
  // Backwards: a comparator matters if one of its two values goes on to a rank or to a comparator that matters.
  std::array<bool, kMaxNetwork> matters = {};
  if (ranks.empty()) matters.fill(true);
  for (const uint64_t rank : ranks) matters[rank] = true;
  std::vector<Comparator> kept;
  for (auto it = network.rbegin(); it != network.rend(); ++it) {
    if (!matters[it->low] && !matters[it->high]) continue;
    matters[it->low] = matters[it->high] = true;
    kept.push_back(*it);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

const std::vector<Comparator>& NetworkCache::Find(size_t count, absl::Span<const uint64_t> ranks) {
  Entry& entry = entries_[count];
  if (!entry.is_made || absl::MakeConstSpan(entry.ranks) != ranks) {
    entry.network = SelectingNetwork(count, ranks);
    entry.ranks.assign(ranks.begin(), ranks.end());
    entry.is_made = true;
  }
  return entry.network;
}

}  // namespace sparseagg::cpu
