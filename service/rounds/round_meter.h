// RoundMeter: what a round counts and times.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_METER_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_METER_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/spec/clip.h"
#include "service/admission/tenants.h"
#include "service/base/metrics.h"
#include "service/base/round_stage.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_snapshot.h"
#include "service/rounds/submission_table.h"

namespace sparseagg::service {

// Counts what the clients of a round do, and times what the server does for them: for the server's Metrics, for the
// Activity of the round's tenant and for the round's timeline. The activity has nothing of a private round but its
// number, since observers read it.
//
// Counts are of this process, as Prometheus expects of a counter: it starts at 0 with the process, and rate() takes all
// that it has then for new. So a submission that a restart adds again is not counted: the run that accepted it was the
// one to count it. Times of the stages are recorded again: this process spends them.
//
// Owned by a Round. Thread-safe.
class RoundMeter {
 public:
  // Borrows all. `is_restored`: an earlier run has created the round.
  RoundMeter(const RoundConfig& config, Tenant& tenant, Metrics& metrics, bool is_restored)
      : config_(config), tenant_(tenant), metrics_(metrics), is_restored_(is_restored) {}

  // Counts a submission that is accepted, rather than restored.
  void CountSubmission(const Receipt& receipt, const ClipOutcome& clip);
  void CountDuplicate(const Receipt& receipt);
  // Counts a refused submission, and logs it as far as the tenant's LineLimit allows.
  void CountRefused(absl::string_view client_id, const absl::Status& reason);
  void CountWithdrawn(uint64_t number) { metrics_.CountWithdrawn(number); }
  // Counts the end of the round. `finish`: the time since its close; nullopt: it ends without one.
  void CountEnd(std::optional<absl::Duration> finish);

  // Records a message before its Append: its size, the time that the server waited for the client to send it, the time
  // until a thread took it, and the time of parsing.
  void RecordMessage(uint64_t bytes, absl::Duration waited, absl::Duration queued, absl::Duration parsing);
  // Records one operation of a stage.
  void RecordStage(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes);
  // Records the time of hashing a submission, which is part of kPrepare.
  void RecordHash(absl::Duration busy) { stages_.Add(RoundStage::kPrepare, busy, absl::ZeroDuration(), 0); }
  // Records an addition to the sum.
  void RecordAdd(absl::Duration busy, absl::Duration wait, uint64_t bytes);
  // Records a page of the result that was encoded.
  void RecordPage(uint64_t bytes, absl::Duration encoding) {
    RecordStage(RoundStage::kEncode, encoding, absl::ZeroDuration(), bytes);
  }
  // Records how long a written page waited for its reader.
  void RecordPageTaken(absl::Duration waited) { stages_.Add(RoundStage::kEncode, absl::ZeroDuration(), waited, 0); }

  // Sets the members of the timeline that this object knows.
  void Fill(RoundTimeline& timeline) const;

 private:
  // Adds to a total of the tenant's activity.
  void AddToActivity(std::atomic<uint64_t> Activity::*total, uint64_t number) {
    if (!config_.HasPrivacy()) tenant_.activity.*total += number;
  }

  const RoundConfig& config_;
  Tenant& tenant_;
  Metrics& metrics_;
  const bool is_restored_;
  StageTotals stages_;
  std::atomic<int64_t> add_ns_{0};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_METER_H_
