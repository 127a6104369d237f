// Parser of messages with the submissions of many clients.
#ifndef SPARSEAGG_SERVICE_CODEC_BATCH_MESSAGE_H_
#define SPARSEAGG_SERVICE_CODEC_BATCH_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "service/rounds/submission_batch.h"
#include "service/rounds/upload.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// One received SubmitBatchRequest: a Parse, then Next for each of client_ids(). Keys and values are copied once, into
// one span for each slice, from which chunks borrow them. Not thread-safe.
class BatchMessage {
 public:
  // `keep`: chunks have messages of their own, for the store.
  // Errors: INVALID_ARGUMENT: not a SubmitBatchRequest, or unknown fields; or as of DecodeChunk and
  // SubmissionBatch::Split.
  absl::Status Parse(const grpc::ByteBuffer& bytes, bool keep);

  const std::string& round() const { return head_.round(); }
  const std::string& submission_id() const { return head_.submission_id(); }
  const std::vector<absl::string_view>& client_ids() const { return batch_.client_ids(); }
  // SubmissionBatch::CheckSize.
  absl::Status CheckSize(const RoundConfig& config) const { return batch_.CheckSize(config); }

  // Returns: the only chunk of the next submission, until the next call.
  const Chunk& Next();

 private:
  v1::SubmitBatchRequest head_;
  v1::UpdateChunk slices_;          // of the message, without keys and values
  std::deque<Column<char>> bytes_;  // of keys and values
  SubmissionBatch batch_;
  bool keeps_messages_ = false;
  std::string message_;  // of the last chunk
  absl::string_view message_span_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_BATCH_MESSAGE_H_
