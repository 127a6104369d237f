// The method SubmitBatch.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/status_macros.h"
#include "host/spec/ids.h"
#include "service/codec/batch_message.h"
#include "service/codec/serialize.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/call_log.h"
#include "service/rounds/submission_batch.h"

namespace sparseagg::service {
absl::Status AggregationMethods::SubmitBatch(const Caller& caller, LargeRequest request,
                                             grpc::ByteBuffer* response) const {
  const Clock& clock = server_.clock;
  const absl::Duration begin = clock.Monotonic();
  const uint64_t size = request.message.Length();
  RETURN_IF_ERROR(CheckMessageSize(size));
  BatchMessage batch;
  const absl::Status parsed = batch.Parse(request.message, /*keep=*/server_.store != nullptr);
  request.message.Clear();
  RETURN_IF_ERROR(parsed);
  LogCall(LogLevel::kDebug, caller, "SubmitBatch", batch.round());
  RETURN_IF_ERROR(CheckId(batch.submission_id(), "submission_id"));
  std::vector<std::string> client_ids(batch.client_ids().begin(), batch.client_ids().end());
  for (std::string& client_id : client_ids) {
    RETURN_IF_ERROR(caller.ResolveClientId(&client_id));
    RETURN_IF_ERROR(CheckId(client_id, "client_id"));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindTarget(caller, batch.round()));
  round->meter().RecordMessage(size, request.read_time, begin - request.received_at, clock.Monotonic() - begin);
  BatchOutcome outcome =
      service::SubmitBatch(*round, client_ids, batch.submission_id(), [&]() -> const Chunk& { return batch.Next(); });
  RETURN_IF_ERROR(round->journal().AwaitDurable());
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
  }
  return Serialize(answer, response);
}

}  // namespace sparseagg::service
