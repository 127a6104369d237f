// A blocking gRPC client for tests.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_CLIENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_CLIENT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"

namespace sparseagg::service {

// Converts a status; the codes have the same numbers.
absl::Status FromGrpc(const grpc::Status& status);

// One connection to a server. Every member makes a call and blocks until it ends. Thread-safe.
class Client {
 public:
  explicit Client(const std::string& address);
  explicit Client(std::shared_ptr<grpc::Channel> channel);

  absl::StatusOr<v1::Round> Create(const v1::RoundSpec& spec, const std::string& id);
  absl::StatusOr<v1::Round> Get(const std::string& name);
  // `only`: the clients that count; empty: all.
  absl::StatusOr<v1::Round> Close(const std::string& name, const std::vector<std::string>& only = {});
  absl::StatusOr<v1::Round> Seal(const std::string& name);
  // `weights`: factors by client.
  absl::StatusOr<v1::Round> CloseWithWeights(const std::string& name,
                                             const std::vector<std::pair<std::string, double>>& weights);
  absl::StatusOr<v1::InspectRoundResponse> Inspect(const v1::InspectRoundRequest& request);
  absl::StatusOr<v1::Round> Cancel(const std::string& name, const std::string& reason = "");
  absl::StatusOr<v1::Round> Wait(const std::string& name, absl::Duration timeout);
  // Closes the round, then waits until it has ended.
  absl::StatusOr<v1::Round> Finish(const std::string& name);
  absl::Status Delete(const std::string& name);

  absl::StatusOr<v1::UploadStatus> Put(const v1::UpdateChunk& chunk);
  // The upload that `chunk` belongs to.
  absl::StatusOr<v1::CommitSubmissionResponse> Commit(const v1::UpdateChunk& chunk);
  absl::StatusOr<v1::UploadStatus> Progress(const v1::UpdateChunk& chunk);
  // Sends all chunks and the commit with unary calls.
  absl::StatusOr<v1::CommitSubmissionResponse> SubmitUnary(const std::vector<v1::UpdateChunk>& chunks);
  // Sends all chunks in one stream.
  absl::StatusOr<v1::CommitSubmissionResponse> SubmitStream(const std::vector<v1::UpdateChunk>& chunks);

  absl::StatusOr<v1::ListSubmissionsResponse> Submissions(const v1::ListSubmissionsRequest& request);

  absl::StatusOr<v1::ResultPage> Page(const v1::GetResultRequest& request);
  // Reads all pages with GetResult.
  absl::StatusOr<std::vector<v1::ResultPage>> Pages(v1::GetResultRequest request);
  absl::StatusOr<std::vector<v1::ResultPage>> Stream(const v1::StreamResultRequest& request);
  // Returns: the serialized pages of all tensors. Requires: the round is DONE.
  std::string ResultBytes(const std::string& name);
  absl::StatusOr<std::vector<v1::ResultPage>> Aggregate(const v1::RoundSpec& spec,
                                                        const std::vector<v1::UpdateChunk>& chunks,
                                                        const v1::ResultFormat& format = {});

  v1::Aggregation::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Aggregation::Stub> stub_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_CLIENT_H_
