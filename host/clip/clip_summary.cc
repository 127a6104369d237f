#include "host/clip/clip_summary.h"

#include <algorithm>
#include <cmath>

namespace sparseagg {

void ClipSummary::Add(const ClipOutcome& outcome, int count) {
  const auto change = static_cast<uint64_t>(count);  // −1 wraps, and so subtracts
  if (outcome.is_clipped()) num_clipped += change;
  if (outcome.linf) num_linf += change;
  if (outcome.max_keys) num_max_keys += change;
  if (!outcome.l2()) return;
  num_l2 += change;
  int exponent = 0;
  std::frexp(outcome.factor, &exponent);  // factor in [2^(exponent − 1), 2^exponent), exponent ≤ 0
  factors[std::min<size_t>(static_cast<size_t>(-exponent), kBuckets - 1)] += change;
}

}  // namespace sparseagg
