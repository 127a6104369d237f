// A round as it is at one moment.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_SNAPSHOT_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/result.h"
#include "host/spec/clip.h"
#include "service/base/round_stage.h"

namespace sparseagg::service {

struct Refusal {
  std::string client_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;  // human-readable, at most RecentRefusals::kMaxReasonBytes
  absl::Time time;
};

// What an intake has, and what it has refused.
struct IntakeSnapshot {
  uint64_t num_uploads = 0;              // that are neither committed nor discarded
  uint64_t num_refused = 0;              // uploads and commits that were refused
  std::vector<Refusal> recent_refusals;  // the latest of these, the oldest first
};

enum class RoundState {
  kOpen,        // takes uploads and commits
  kFinalizing,  // closed; the result is being computed
  kDone,        // has a result
  kFailed,      // has a reason instead
  kCancelled,
  kSealed,  // takes no submissions, and keeps those that it has; after kOpen and before kFinalizing
};
inline constexpr size_t kNumRoundStates = 6;

constexpr absl::string_view Name(RoundState state) {
  constexpr absl::string_view kNames[kNumRoundStates] = {"OPEN", "FINALIZING", "DONE", "FAILED", "CANCELLED", "SEALED"};
  return kNames[static_cast<size_t>(state)];
}

// True for the three states that never change.
constexpr bool HasEnded(RoundState state) {
  return state == RoundState::kDone || state == RoundState::kFailed || state == RoundState::kCancelled;
}

// False for OPEN and SEALED, of which the submissions are not merged yet.
constexpr bool IsClosed(RoundState state) { return state != RoundState::kOpen && state != RoundState::kSealed; }

// One result per tensor, in the order of the spec.
using Results = std::shared_ptr<const std::vector<Result>>;

// The times that a round has taken so far.
struct RoundTimeline {
  StageTimes stages;      // busy and waiting times of each stage, summed over threads
  absl::Duration add;     // time of adding submissions to the sum, summed over threads
  absl::Duration finish;  // wall time from the close to the end
  absl::Duration open;    // wall time from the creation to the close
};

// A copy; it does not change when the round does.
struct RoundSnapshot : IntakeSnapshot {
  RoundState state = RoundState::kOpen;
  std::string reason;            // kFailed and kCancelled: for people
  absl::Status failure;          // kFailed and kCancelled: the error of the one-shot call that made the round
  uint64_t num_submissions = 0;  // committed and not withdrawn, duplicates not counted
  uint64_t num_tuples = 0;       // of these submissions, like num_bytes
  uint64_t num_bytes = 0;        // of decoded keys and values
  uint64_t num_withdrawn = 0;    // submissions taken out: by Withdraw, or left out by the close
  absl::Time create_time;
  absl::Time close_time = absl::InfinitePast();   // InfinitePast: not closed yet
  absl::Time end_time = absl::InfinitePast();     // InfinitePast: not ended yet
  absl::Time expire_time = absl::InfinitePast();  // InfinitePast: not ended yet
  RoundTimeline timeline;
  Results results;  // null unless kDone
  ClipSummary clip;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_SNAPSHOT_H_
