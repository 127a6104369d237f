// What the bounds of a round have done to its submissions, without their ids.
#ifndef SPARSEAGG_HOST_CLIP_CLIP_SUMMARY_H_
#define SPARSEAGG_HOST_CLIP_CLIP_SUMMARY_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace sparseagg {

// What the bounds have done to one submission.
struct ClipOutcome {
  double factor = 1.0;  // the smallest factor of a tensor; below 1 where an L2 norm was beyond its bound
  bool linf = false;    // a value was beyond it
  bool max_keys = false;

  bool l2() const { return factor < 1.0; }
  bool is_clipped() const { return l2() || linf || max_keys; }
};

// Counts of outcomes.
struct ClipSummary {
  // Bucket b of `factors`: factors in [2^-(b + 1), 2^-b); the last one: and all below.
  static constexpr size_t kBuckets = 16;

  uint64_t num_clipped = 0;  // submissions that any bound has changed
  uint64_t num_l2 = 0;       // and those that each bound has changed
  uint64_t num_linf = 0;
  uint64_t num_max_keys = 0;
  std::array<uint64_t, kBuckets> factors = {};  // of the num_l2 submissions

  // Counts an outcome, or with count −1 takes it out again.
  void Add(const ClipOutcome& outcome, int count = 1);
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CLIP_CLIP_SUMMARY_H_
