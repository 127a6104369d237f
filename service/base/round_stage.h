// The stages of a round's data and the time spent in each.
#ifndef SPARSEAGG_SERVICE_BASE_ROUND_STAGE_H_
#define SPARSEAGG_SERVICE_BASE_ROUND_STAGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

// A stage has busy time, in which the server works, and wait time, in which the data waits.
enum class RoundStage {
  kReceive,  // wait: for a client, between two messages of an upload; busy: never, because gRPC receives
  kDecode,   // busy: from message to validated columns; wait: for a pool thread
  kPrepare,  // busy: hash, sort and fold a submission
  kMerge,    // busy: add submissions, make the result; wait: for the commits of other submissions
  kEncode,   // busy: make pages of the result; wait: for their readers
};
inline constexpr size_t kNumStages = 5;
inline constexpr std::array<RoundStage, kNumStages> kAllStages = {
    RoundStage::kReceive, RoundStage::kDecode, RoundStage::kPrepare, RoundStage::kMerge, RoundStage::kEncode};

constexpr absl::string_view Name(RoundStage stage) {
  constexpr absl::string_view kNames[kNumStages] = {"receive", "decode", "prepare", "merge", "encode"};
  return kNames[static_cast<size_t>(stage)];
}

// Time of one stage, summed over uploads and threads. The sum may exceed the elapsed time.
struct StageTime {
  absl::Duration busy;
  absl::Duration wait;
  uint64_t bytes = 0;  // data processed: messages in receive and encode, keys and values otherwise
};
using StageTimes = std::array<StageTime, kNumStages>;

// Returns: the stage with the most time, busy and wait; the first of equals.
RoundStage LongestStage(const StageTimes& times);

// Sums of stage times. Owned by a round. Thread-safe, lock-free; Read is not atomic over the three parts of a stage.
class StageTotals {
 public:
  void Add(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes);
  StageTimes Read() const;

 private:
  struct Sums {
    std::atomic<int64_t> busy_ns{0};
    std::atomic<int64_t> wait_ns{0};
    std::atomic<uint64_t> bytes{0};
  };
  std::array<Sums, kNumStages> sums_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_ROUND_STAGE_H_
