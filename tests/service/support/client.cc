#include "tests/service/support/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "host/base/status_macros.h"
#include "service/codec/spec_codec.h"

namespace sparseagg::service {
namespace {

// Milliseconds; read when gRPC is initialised.
// Workaround: gRPC 1.51 polls the connection of a channel without calls only every 5 s by default, and a server that
// shuts down waits for that. Remove with: a gRPC that polls idle channels all the time.
[[maybe_unused]] const int kPollIdleChannels = setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "50", 1);

template <typename Response>
absl::StatusOr<Response> Either(const grpc::Status& status, Response& response) {
  if (!status.ok()) return FromGrpc(status);
  return std::move(response);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Each client has a connection of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Makes a CommitSubmissionRequest or a GetUploadStatusRequest for the upload of `chunk`.
template <typename Request>
Request IdsOf(const v1::UpdateChunk& chunk) {
  Request request;
  request.set_round(chunk.round());
  request.set_client_id(chunk.client_id());
  request.set_submission_id(chunk.submission_id());
  request.set_upload_tag(chunk.upload_tag());
  return request;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

Client::Client(const std::string& address) : Client(Connect(address)) {}
Client::Client(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), stub_(v1::Aggregation::NewStub(channel_)) {}

absl::StatusOr<v1::Round> Client::Create(const v1::RoundSpec& spec, const std::string& id) {
  grpc::ClientContext context;
  v1::CreateRoundRequest request;
  request.set_round_id(id);
  *request.mutable_spec() = spec;
  v1::Round round;
  return Either(stub_->CreateRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::Get(const std::string& name) {
  grpc::ClientContext context;
  v1::GetRoundRequest request;
  request.set_round(name);
  v1::Round round;
  return Either(stub_->GetRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::Close(const std::string& name, const std::vector<std::string>& only) {
  grpc::ClientContext context;
  v1::CloseRoundRequest request;
  request.set_round(name);
  for (const std::string& client : only) request.add_only_client_ids(client);
  v1::Round round;
  return Either(stub_->CloseRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::Seal(const std::string& name) {
  grpc::ClientContext context;
  v1::SealRoundRequest request;
  request.set_round(name);
  v1::Round round;
  return Either(stub_->SealRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::CloseWithWeights(const std::string& name,
                                                   const std::vector<std::pair<std::string, double>>& weights) {
  grpc::ClientContext context;
  v1::CloseRoundRequest request;
  request.set_round(name);
  for (const auto& [client, weight] : weights) {
    v1::ClientWeight* const added = request.add_client_weights();
    added->set_client_id(client);
    added->set_weight(weight);
  }
  v1::Round round;
  return Either(stub_->CloseRound(&context, request, &round), round);
}

absl::StatusOr<v1::InspectRoundResponse> Client::Inspect(const v1::InspectRoundRequest& request) {
  grpc::ClientContext context;
  v1::InspectRoundResponse page;
  return Either(stub_->InspectRound(&context, request, &page), page);
}

absl::StatusOr<v1::Round> Client::Cancel(const std::string& name, const std::string& reason) {
  grpc::ClientContext context;
  v1::CancelRoundRequest request;
  request.set_round(name);
  request.set_reason(reason);
  v1::Round round;
  return Either(stub_->CancelRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::Wait(const std::string& name, absl::Duration timeout) {
  grpc::ClientContext context;
  v1::WaitRoundRequest request;
  request.set_round(name);
  EncodeDuration(timeout, request.mutable_timeout());
  v1::Round round;
  return Either(stub_->WaitRound(&context, request, &round), round);
}

absl::StatusOr<v1::Round> Client::Finish(const std::string& name) {
  RETURN_IF_ERROR(Close(name).status());
  return Wait(name, absl::Seconds(60));
}

absl::Status Client::Delete(const std::string& name) {
  grpc::ClientContext context;
  v1::DeleteRoundRequest request;
  request.set_round(name);
  google::protobuf::Empty empty;
  return FromGrpc(stub_->DeleteRound(&context, request, &empty));
}

absl::StatusOr<v1::UploadStatus> Client::Put(const v1::UpdateChunk& chunk) {
  grpc::ClientContext context;
  v1::UploadStatus response;
  return Either(stub_->PutChunk(&context, chunk, &response), response);
}

absl::StatusOr<v1::CommitSubmissionResponse> Client::Commit(const v1::UpdateChunk& chunk) {
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  return Either(stub_->CommitSubmission(&context, IdsOf<v1::CommitSubmissionRequest>(chunk), &response), response);
}

absl::StatusOr<v1::UploadStatus> Client::Progress(const v1::UpdateChunk& chunk) {
  grpc::ClientContext context;
  v1::UploadStatus response;
  return Either(stub_->GetUploadStatus(&context, IdsOf<v1::GetUploadStatusRequest>(chunk), &response), response);
}

absl::StatusOr<v1::CommitSubmissionResponse> Client::SubmitUnary(const std::vector<v1::UpdateChunk>& chunks) {
  for (const v1::UpdateChunk& chunk : chunks) RETURN_IF_ERROR(Put(chunk).status());
  return Commit(chunks.back());
}

absl::StatusOr<v1::CommitSubmissionResponse> Client::SubmitStream(const std::vector<v1::UpdateChunk>& chunks) {
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  const auto writer = stub_->SubmitUpdate(&context, &response);
  for (const v1::UpdateChunk& chunk : chunks) {
    if (!writer->Write(chunk)) break;  // the server has refused the stream; Finish returns its status
  }
  writer->WritesDone();
  return Either(writer->Finish(), response);
}

absl::StatusOr<v1::ListSubmissionsResponse> Client::Submissions(const v1::ListSubmissionsRequest& request) {
  grpc::ClientContext context;
  v1::ListSubmissionsResponse response;
  return Either(stub_->ListSubmissions(&context, request, &response), response);
}

absl::StatusOr<v1::ResultPage> Client::Page(const v1::GetResultRequest& request) {
  grpc::ClientContext context;
  v1::ResultPage page;
  return Either(stub_->GetResult(&context, request, &page), page);
}

absl::StatusOr<std::vector<v1::ResultPage>> Client::Pages(v1::GetResultRequest request) {
  std::vector<v1::ResultPage> pages;
  do {
    ASSIGN_OR_RETURN(v1::ResultPage page, Page(request));
    request.set_page_token(page.next_page_token());
    pages.push_back(std::move(page));
  } while (!request.page_token().empty());
  return pages;
}

absl::StatusOr<std::vector<v1::ResultPage>> Client::Stream(const v1::StreamResultRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub_->StreamResult(&context, request);
  std::vector<v1::ResultPage> pages;
  for (v1::ResultPage page; reader->Read(&page); page.Clear()) pages.push_back(page);
  return Either(reader->Finish(), pages);
}

std::string Client::ResultBytes(const std::string& name) {
  v1::StreamResultRequest request;
  request.set_round(name);
  const auto pages = Stream(request);
  EXPECT_TRUE(pages.ok()) << pages.status();
  std::string bytes;
  if (!pages.ok()) return bytes;
  for (const v1::ResultPage& page : *pages) bytes += page.SerializeAsString();
  return bytes;
}

absl::StatusOr<std::vector<v1::ResultPage>> Client::Aggregate(const v1::RoundSpec& spec,
                                                              const std::vector<v1::UpdateChunk>& chunks,
                                                              const v1::ResultFormat& format) {
  grpc::ClientContext context;
  const auto stream = stub_->Aggregate(&context);
  v1::AggregateRequest request;
  *request.mutable_spec() = spec;
  *request.mutable_format() = format;
  bool open = stream->Write(request);
  request.Clear();
  for (const v1::UpdateChunk& chunk : chunks) {
    if (!open) break;  // the server has refused the stream; Finish returns its status
    *request.mutable_chunk() = chunk;
    open = stream->Write(request);
  }
  stream->WritesDone();
  std::vector<v1::ResultPage> pages;
  for (v1::ResultPage page; stream->Read(&page); page.Clear()) pages.push_back(page);
  return Either(stream->Finish(), pages);
}

}  // namespace sparseagg::service
