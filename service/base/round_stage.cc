#include "service/base/round_stage.h"

namespace sparseagg::service {

RoundStage LongestStage(const StageTimes& times) {
  RoundStage longest = RoundStage::kReceive;
  absl::Duration most = absl::ZeroDuration();
  for (const RoundStage stage : kAllStages) {
    const StageTime& time = times[static_cast<size_t>(stage)];
    if (time.busy + time.wait > most) {
      most = time.busy + time.wait;
      longest = stage;
    }
  }
  return longest;
}

void StageTotals::Add(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes) {
  Sums& sums = sums_[static_cast<size_t>(stage)];
  sums.busy_ns.fetch_add(absl::ToInt64Nanoseconds(busy), std::memory_order_relaxed);
  sums.wait_ns.fetch_add(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed);
  sums.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

StageTimes StageTotals::Read() const {
  StageTimes times;
  for (size_t i = 0; i < kNumStages; ++i) {
    times[i].busy = absl::Nanoseconds(sums_[i].busy_ns.load(std::memory_order_relaxed));
    times[i].wait = absl::Nanoseconds(sums_[i].wait_ns.load(std::memory_order_relaxed));
    times[i].bytes = sums_[i].bytes.load(std::memory_order_relaxed);
  }
  return times;
}

}  // namespace sparseagg::service
