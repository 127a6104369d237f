// The stages that a round's bytes pass through, and what each of them takes.
#ifndef SPARSEAGG_SERVICE_BASE_ROUND_STAGE_H_
#define SPARSEAGG_SERVICE_BASE_ROUND_STAGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

enum class RoundStage {
  kReceive,  // waiting: for clients, between one message of an upload and the next. Busy: never, that is gRPC's part
  kDecode,   // a message to validated columns. Waiting: for a thread of the pool
  kPrepare,  // hashing, sorting and folding a submission
  kMerge,    // adding submissions, and the result. Waiting: for other submissions' turn, and for the last one's end
  kEncode,   // pages of the result. Waiting: for their readers
};
inline constexpr size_t kNumStages = 5;
inline constexpr std::array<RoundStage, kNumStages> kAllStages = {
    RoundStage::kReceive, RoundStage::kDecode, RoundStage::kPrepare, RoundStage::kMerge, RoundStage::kEncode};

// "receive", …
absl::string_view Name(RoundStage stage);

// Summed over uploads and threads, so that it may be more than the time that passed.
struct StageTime {
  absl::Duration busy;
  absl::Duration wait;
  uint64_t bytes = 0;  // that passed: messages in receive and encode, otherwise keys and values
};
using StageTimes = std::array<StageTime, kNumStages>;

// The stage that took most, waiting included: the longest pole. The first of equals.
RoundStage LongestStage(const StageTimes& times);

// Sums. Thread-safe, lock-free; the parts of one stage are read one by one.
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
