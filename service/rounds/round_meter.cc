#include "service/rounds/round_meter.h"

#include <optional>

#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/base/refusals.h"
#include "service/rounds/intake.h"

namespace sparseagg::service {

void RoundMeter::CountSubmission(const Receipt& receipt, const ClipOutcome& clip) {
  metrics_.CountSubmission(/*duplicate=*/false, receipt.num_tuples, receipt.num_bytes);
  if (clip.is_clipped()) metrics_.CountClipped(clip);
  AddToActivity(&Activity::submissions, 1);
}

void RoundMeter::CountDuplicate(const Receipt& receipt) {
  metrics_.CountSubmission(/*duplicate=*/true, receipt.num_tuples, receipt.num_bytes);
}

void RoundMeter::CountRefused(absl::string_view client_id, const absl::Status& reason) {
  metrics_.CountRefused(reason);
  AddToActivity(&Activity::refused, 1);
  const std::optional<uint64_t> omitted = tenant_.refusal_lines.TryTake();
  if (!omitted.has_value()) return;
  // No memory for the line is no reason to fail what the caller does.
  ToStatus([&] {
    Log(LogLevel::kWarning, "submission_refused",
        {{"round", config_.LogName()},
         {"client", client_id},
         {"code", absl::StatusCodeToString(reason.code())},
         {"reason", Shorten(reason.message(), RecentRefusals::kMaxReasonBytes)},
         {"omitted", *omitted}});
    return absl::OkStatus();
  }).IgnoreError();
}

void RoundMeter::CountEnd(std::optional<absl::Duration> finish) {
  if (finish.has_value()) metrics_.ObserveFinish(*finish);
  if (!is_restored_ && !config_.id.empty()) ++tenant_.activity.ended_rounds;
}

void RoundMeter::RecordMessage(uint64_t bytes, absl::Duration waited, absl::Duration queued, absl::Duration parsing) {
  stages_.Add(RoundStage::kReceive, absl::ZeroDuration(), waited, bytes);
  metrics_.ObserveStage(RoundStage::kReceive, waited);
  AddToActivity(&Activity::received_bytes, bytes);
  stages_.Add(RoundStage::kDecode, parsing, queued, 0);
}

void RoundMeter::RecordStage(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes) {
  stages_.Add(stage, busy, wait, bytes);
  metrics_.ObserveStage(stage, busy);
}

void RoundMeter::RecordAdd(absl::Duration busy, absl::Duration wait, uint64_t bytes) {
  add_ns_.fetch_add(absl::ToInt64Nanoseconds(busy), std::memory_order_relaxed);
  RecordStage(RoundStage::kMerge, busy, wait, bytes);
}

void RoundMeter::Fill(RoundTimeline& timeline) const {
  timeline.stages = stages_.Read();
  timeline.add = absl::Nanoseconds(add_ns_.load(std::memory_order_relaxed));
}

}  // namespace sparseagg::service
