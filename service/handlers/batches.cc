// RunLarge, which calls the methods with large requests, and SubmitBatch.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/codec/parse.h"
#include "service/codec/sliced_message.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/rounds/submission_batch.h"

namespace sparseagg::service {
namespace {

// How long a batch has a thread of the pool. Then other tasks that wait have their turn.
constexpr absl::Duration kTurn = absl::Milliseconds(20);

absl::Status PeerHasGone() { return absl::CancelledError("the call was cancelled"); }

}  // namespace

struct AggregationMethods::Batch {
  LargeCall call;
  BatchMessage message;
  std::vector<std::string> client_ids;
  std::shared_ptr<Intake> intake;
  BatchOutcome outcome;
};

void AggregationMethods::RunLarge(Method method, LargeCall call) const {
  if (call.is_cancelled()) return call.done(PeerHasGone());
  if (method != Method::kSubmitBatch) {
    return call.done(ToStatus([&] { return method == Method::kPutChunk ? PutChunk(call) : PutResultRange(call); }));
  }
  const std::shared_ptr<Batch> batch(new Batch{std::move(call), {}, {}, nullptr, {}});
  const absl::Status begun = ToStatus([&] { return BeginBatch(*batch); });
  begun.ok() ? RunTurns(batch) : batch->call.done(begun);
}

absl::Status AggregationMethods::BeginBatch(Batch& batch) const {
  const Clock& clock = context_.clock;
  const absl::Duration begin = clock.Monotonic();
  const Caller& caller = batch.call.caller;
  const uint64_t size = batch.call.message.size();
  RETURN_IF_ERROR(CheckMessageSize(size));
  const absl::Status parsed = batch.message.Parse(batch.call.message, /*keep=*/context_.store != nullptr);
  batch.call.message.Clear();
  RETURN_IF_ERROR(parsed);
  LogCall(LogLevel::kDebug, caller, "SubmitBatch", batch.message.round());
  RETURN_IF_ERROR(CheckId(batch.message.submission_id(), "submission_id"));
  for (const absl::string_view id : batch.message.client_ids()) {
    std::string& client_id = batch.client_ids.emplace_back(id);
    RETURN_IF_ERROR(caller.ResolveClientId(&client_id));
    RETURN_IF_ERROR(CheckId(client_id, "client_id"));
  }
  ASSIGN_OR_RETURN(batch.intake, streams_.FindIntake(caller.identity().tenant, batch.message.round()));
  RETURN_IF_ERROR(batch.message.CheckSize(batch.intake->config()));
  batch.intake->meter().RecordMessage(size, batch.call.read_time, begin - batch.call.received_at,
                                      clock.Monotonic() - begin);
  return absl::OkStatus();
}

absl::StatusOr<bool> AggregationMethods::RunTurn(Batch& batch) const {
  const absl::Duration end = context_.clock.Monotonic() + kTurn;
  BatchOutcome& outcome = batch.outcome;
  service::SubmitBatch(
      *batch.intake, batch.client_ids, batch.message.submission_id(),
      [&]() -> const Chunk& { return batch.message.Next(); },
      [&] { return context_.clock.Monotonic() >= end || batch.call.is_cancelled(); }, outcome);
  if (outcome.codes.size() < batch.client_ids.size()) {
    if (batch.call.is_cancelled()) return PeerHasGone();
    return false;
  }
  RETURN_IF_ERROR(batch.intake->journal().AwaitDurable());
  v1::SubmitBatchResponse answer;
  answer.set_codes(std::move(outcome.codes));
  answer.set_num_duplicates(outcome.num_duplicates);
  answer.set_num_tuples(outcome.num_tuples);
  answer.set_num_bytes(outcome.num_bytes);
  for (BatchOutcome::Refused& refused : outcome.refused) {
    v1::BatchRefusal& refusal = *answer.add_refusals();
    refusal.set_index(refused.index);
    refusal.set_client_id(std::move(refused.client_id));
    refusal.set_reason(std::move(refused.reason));
    refusal.set_error_reason(std::move(refused.info.reason));
    refusal.mutable_error_metadata()->insert(refused.info.metadata.begin(), refused.info.metadata.end());
  }
  RETURN_IF_ERROR(Serialize(answer, batch.call.response));
  return true;
}

void AggregationMethods::RunTurns(const std::shared_ptr<Batch>& batch) const {
  const absl::StatusOr<bool> has_ended = ToStatus([&] { return RunTurn(*batch); });
  if (has_ended.ok() && !*has_ended) return context_.pool.Post([this, batch] { RunTurns(batch); });
  batch->call.done(has_ended.status());
}

}  // namespace sparseagg::service
