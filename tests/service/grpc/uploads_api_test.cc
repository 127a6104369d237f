// Uploads by unary calls and by SubmitUpdate.
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

class UploadsApiTest : public ServerFixture {
 protected:
  // Waits until the round has this many open uploads.
  void AwaitUploads(const std::string& name, uint64_t count) {
    while (client().Get(name)->num_uploads() != count) std::this_thread::yield();
  }
};

TEST_F(UploadsApiTest, Unary_ChunkRefusedBeforeItIsTaken_LeavesAnUploadWithAnotherTagAlone) {
  options_.limits.max_message_bytes = 100'000;
  const std::string name = Create(SumSpec());
  v1::UpdateChunk chunk = MakeChunk(name, "a", {1}, {1}, 0, true);
  chunk.set_upload_tag("mine");
  ASSERT_THAT(client().Put(chunk), IsOk());
  v1::UpdateChunk other = MakeChunk(name, "a", std::vector<uint32_t>(12'500, 1), std::vector<float>(12'500, 1));
  other.set_upload_tag("other");
  EXPECT_THAT(client().Put(other), HasCode(Code::kResourceExhausted));
  EXPECT_THAT(client().Commit(chunk), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 1)));
}

TEST_F(UploadsApiTest, Unary_LongTag_IsRefusedEverywhere) {
  const std::string name = Create(SumSpec());
  v1::UpdateChunk chunk = MakeChunk(name, "a", {1}, {1});
  chunk.set_upload_tag(std::string(65, 't'));
  const auto refused = Fails(Code::kInvalidArgument, HasSubstr("upload_tag has 65 bytes; up to 64"));
  EXPECT_THAT(client().Put(chunk), refused);
  EXPECT_THAT(client().Progress(chunk), refused);
  EXPECT_THAT(client().Commit(chunk), refused);
  chunk.set_upload_tag(std::string(64, '\0'));
  EXPECT_THAT(client().SubmitUnary({chunk}), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 1)));
}

TEST_F(UploadsApiTest, Ids_MissingOrLong_AreRefused) {
  const std::string name = Create(SumSpec());
  const std::pair<std::string, std::string> ids[] = {
      {"", "s"}, {std::string(257, 'x'), "s"}, {"a", ""}, {"a", std::string(257, 'x')}};
  for (const auto& [client_id, submission_id] : ids) {
    v1::UpdateChunk chunk = MakeChunk(name, client_id, {1}, {1});
    chunk.set_submission_id(submission_id);
    const std::string problem = absl::StrCat(submission_id == "s" ? "client_id has " : "submission_id has ",
                                             submission_id == "s" ? client_id.size() : submission_id.size(), " bytes");
    EXPECT_THAT(client().Put(chunk), Fails(Code::kInvalidArgument, HasSubstr(problem)));
    EXPECT_THAT(client().SubmitStream({chunk}), Fails(Code::kInvalidArgument, HasSubstr(problem)));
    EXPECT_THAT(client().Commit(chunk), Fails(Code::kInvalidArgument, HasSubstr(problem)));
  }
}

// gRPC would decompress a message before it checks the size, to a thousand times the bytes that were sent.
TEST_F(UploadsApiTest, Compressed_IsRefused) {
  const std::string name = Create(SumSpec());
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::UploadStatus status;
  const std::vector<uint32_t> keys(10'000, 1);
  const grpc::Status refused =
      client().stub().PutChunk(&context, MakeChunk(name, "a", keys, std::vector<float>(keys.size(), 0.0f)), &status);
  EXPECT_THAT(FromGrpc(refused), Fails(Code::kUnimplemented, HasSubstr("gzip")));
}

TEST_F(UploadsApiTest, Stream_EndsBeforeTheLastChunk_IsDiscarded) {
  const std::string name = Create(SumSpec());
  EXPECT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {1}, 0, false)}),
              Fails(Code::kFailedPrecondition, HasSubstr("last")));
  EXPECT_THAT(client().SubmitStream({}), Fails(Code::kInvalidArgument, HasSubstr("no chunk")));
  EXPECT_EQ(client().Get(name)->num_uploads(), 0);
  EXPECT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {2})}), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 2)));
}

TEST_F(UploadsApiTest, Stream_CancelledInTheMiddle_IsDiscardedAndTheRoundGoesOn) {
  const std::string name = Create(SumSpec());
  {
    grpc::ClientContext context;
    v1::CommitSubmissionResponse response;
    const auto writer = client().stub().SubmitUpdate(&context, &response);
    ASSERT_TRUE(writer->Write(MakeChunk(name, "a", {1}, {1}, 0, false)));
    AwaitUploads(name, 1);
    context.TryCancel();
    EXPECT_THAT(FromGrpc(writer->Finish()), HasCode(Code::kCancelled));
  }
  AwaitUploads(name, 0);
  EXPECT_EQ(client().Get(name)->num_refused(), 0);
  EXPECT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {7})}), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 7)));
  while (server().context().uploads.taken() != 0) std::this_thread::yield();
}

TEST_F(UploadsApiTest, Stream_RoundClosesMeanwhile_IsToldAtOnce) {
  const std::string name = Create(SumSpec());
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  const auto writer = client().stub().SubmitUpdate(&context, &response);
  ASSERT_TRUE(writer->Write(MakeChunk(name, "a", {1}, {1}, 0, false)));
  AwaitUploads(name, 1);
  EXPECT_THAT(ResultOf(name), IsEmpty());
  // The server answers although the client sends nothing more.
  EXPECT_THAT(FromGrpc(writer->Finish()), Fails(Code::kFailedPrecondition, HasSubstr("FINALIZING")));
}

TEST_F(UploadsApiTest, Stream_NothingAtAllForUploadTimeout_IsGivenUp) {
  manual_time_ = true;
  options_.limits.upload_timeout = absl::Seconds(30);
  const std::string name = Create(SumSpec());
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  const auto writer = client().stub().SubmitUpdate(&context, &response);
  grpc::ClientContext other_context;
  const auto other = client().stub().Aggregate(&other_context);
  v1::AggregateRequest request;
  *request.mutable_spec() = SumSpec();
  ASSERT_TRUE(other->Write(request));
  while (server().context().open_rounds.taken() != 2) std::this_thread::yield();
  // The test cannot see whether the other call has begun to wait, so that it advances the clock until the call ends.
  std::atomic<bool> over{false};
  std::thread time([&] {
    for (; !over; std::this_thread::yield()) Advance(absl::Seconds(30));
  });
  const auto matcher = Fails(Code::kDeadlineExceeded, HasSubstr("upload_timeout 30s"));
  EXPECT_THAT(FromGrpc(writer->Finish()), matcher);
  EXPECT_THAT(FromGrpc(other->Finish()), matcher);
  over = true;
  time.join();
  EXPECT_EQ(server().context().open_rounds.taken(), 1);
}

// Like a client whose timeout is shorter than the merge that its commit starts.
TEST_F(UploadsApiTest, Commit_AskedForAgainAndAgain_LeavesTheOthersTheirThreads) {
  Hold preparing;
  hooks_.prepare = preparing.Hook();
  const std::string name = Create(SumSpec());
  const v1::UpdateChunk other = MakeChunk(name, "other", {1}, {1});
  ASSERT_THAT(client().Put(other), IsOk());
  const v1::UpdateChunk chunk = MakeChunk(name, "a", {1}, {1});
  ASSERT_THAT(client().Put(chunk), IsOk());
  v1::CommitSubmissionRequest request;
  request.set_round(name);
  request.set_client_id(chunk.client_id());
  request.set_submission_id(chunk.submission_id());
  struct Call {
    grpc::ClientContext context;
    v1::CommitSubmissionResponse response;
    std::promise<grpc::Status> ended;
  };
  std::vector<Call> calls(5);
  for (Call& call : calls) {
    client().stub().async()->CommitSubmission(&call.context, &request, &call.response,
                                              [&call](const grpc::Status& status) { call.ended.set_value(status); });
    preparing.Wait();
  }
  v1::GetUploadStatusRequest asked;
  asked.set_round(name);
  asked.set_client_id(other.client_id());
  asked.set_submission_id(other.submission_id());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));  // rather than for ever
  v1::UploadStatus progress;
  EXPECT_THAT(FromGrpc(client().stub().GetUploadStatus(&context, asked, &progress)), IsOk());
  calls.back().context.TryCancel();
  EXPECT_THAT(FromGrpc(calls.back().ended.get_future().get()), HasCode(Code::kCancelled));
  calls.pop_back();
  preparing.Release();
  int counted = 0;
  for (Call& call : calls) {
    ASSERT_THAT(FromGrpc(call.ended.get_future().get()), IsOk());
    counted += call.response.duplicate() ? 0 : 1;
  }
  EXPECT_EQ(counted, 1);
  EXPECT_EQ(client().Get(name)->num_submissions(), 1);
}

TEST_F(UploadsApiTest, Message_LargerThanTheLimit_SaysWhichLimit) {
  options_.limits.max_message_bytes = 100'000;
  const std::string name = Create(SumSpec());
  const auto chunk_of = [&](size_t tuples) {
    return MakeChunk(name, "a", std::vector<uint32_t>(tuples, 1), std::vector<float>(tuples, 1));
  };
  const auto matcher = Fails(Code::kResourceExhausted, HasSubstr("max_message_bytes 100000"));
  EXPECT_THAT(client().Put(chunk_of(12'500)), matcher);
  EXPECT_THAT(client().SubmitStream({chunk_of(12'500)}), matcher);
  // Far larger messages are refused by gRPC itself.
  EXPECT_THAT(client().Put(chunk_of(200'000)), HasCode(Code::kResourceExhausted));
  EXPECT_EQ(client().Get(name)->num_uploads(), 0);
  EXPECT_THAT(client().SubmitUnary({chunk_of(12'000)}), IsOk());
}

}  // namespace
}  // namespace sparseagg::service
