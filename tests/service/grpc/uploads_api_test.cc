// Uploads by unary calls and by SubmitUpdate: which thread decodes, back pressure, bad messages.
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "service/admission/memory_shares.h"
#include "service/admission/process_memory.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/threads.h"
#include "tests/support/sanitized.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;
using testing::kSanitized;

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

// ---- SubmitUpdate: which thread decodes, back pressure, bad messages.

class SubmitStreamTest : public ServerFixture {
 protected:
  SubmitStreamTest() {
    hooks_.prepare = [this] {
      prepared_by_ = std::this_thread::get_id();
      return absl::OkStatus();
    };
  }

  std::set<std::thread::id> PoolThreads() {
    struct Roll {
      std::mutex mu;
      std::set<std::thread::id> threads;
      Event all_here;
    };
    const auto roll = std::make_shared<Roll>();
    WorkerPool& pool = server().context().pool;
    const auto count = static_cast<size_t>(pool.num_threads());
    for (size_t i = 0; i < count; ++i) {
      // Each task waits for all others, so that every thread of the pool runs one.
      pool.Post([roll, count] {
        {
          const std::lock_guard lock(roll->mu);
          roll->threads.insert(std::this_thread::get_id());
          if (roll->threads.size() == count) roll->all_here.Notify();
        }
        roll->all_here.Wait();
      });
    }
    roll->all_here.Wait();
    const std::lock_guard lock(roll->mu);
    return roll->threads;
  }
  // Returns: whether the pool prepared a submission of `num_chunks` chunks with `num_keys` keys each.
  bool IsPreparedOnPool(const std::string& round, uint32_t num_chunks, uint32_t num_keys) {
    std::vector<v1::UpdateChunk> chunks;
    std::vector<uint32_t> keys(num_keys);
    for (uint32_t i = 0; i < num_chunks; ++i) {
      std::iota(keys.begin(), keys.end(), i * num_keys);
      chunks.push_back(MakeChunk(round, "a", keys, std::vector<float>(num_keys, 0.5f), i, i + 1 == num_chunks));
    }
    EXPECT_THAT(client().SubmitStream(chunks), IsOk());
    return PoolThreads().contains(prepared_by_.load());
  }

 private:
  std::atomic<std::thread::id> prepared_by_;
};

// Long work must not run on the few threads of gRPC, which all calls need.
TEST_F(SubmitStreamTest, LargeSubmissions_AreThePools) {
  const std::string round = Create(SumSpec(1'000'000));
  EXPECT_TRUE(IsPreparedOnPool(round, 4, 100'000));
}

TEST_F(SubmitStreamTest, CommitsThatMayMerge_AreThePools) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
  EXPECT_TRUE(IsPreparedOnPool(Create(spec), 1, 10));
}

// A byte encodes 128 keys. The gRPC thread that received them must still answer other clients while the pool is busy.
TEST_F(SubmitStreamTest, ShortMessagesOfManyKeys_AreThePools) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const std::string round = Create(spec);
  const auto chunk_of = [&](const std::string& client, uint64_t num_blocks) {
    constexpr uint64_t kKeysOfABlock = 128;
    v1::UpdateChunk chunk = MakeChunk(round, client, {}, {});
    v1::TensorSlice& slice = *chunk.mutable_slices(0);
    slice.set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
    slice.set_value_encoding(v1::VALUE_ENCODING_NONE);
    slice.set_num_keys(num_blocks * kKeysOfABlock);
    slice.set_keys(std::string(num_blocks, '\0'));  // one after the other
    slice.set_first_key(1'000'000 - slice.num_keys() + 1);
    return chunk;
  };
  BusyPool busy(server().context().pool);

  const v1::UpdateChunk many = chunk_of("many", 5000);
  grpc::ClientContext context;
  v1::CommitSubmissionResponse response;
  const auto writer = client().stub().SubmitUpdate(&context, &response);
  EXPECT_TRUE(writer->Write(many));
  Event answered;
  absl::Status answer;
  std::thread reader([&] {
    answer = FromGrpc(writer->Finish());
    answered.Notify();
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(client().SubmitStream({chunk_of("few", 10)}), Fails(Code::kInvalidArgument, HasSubstr("key 1000000")));
  }
  EXPECT_FALSE(answered.HasHappened());
  busy.Release();
  reader.join();
  EXPECT_THAT(answer, Fails(Code::kInvalidArgument, HasSubstr("key 1000000")));
}

// Slices of two bytes, which take much more memory once parsed. Messages that wait for the busy pool must not be
// parsed.
TEST_F(SubmitStreamTest, ShortMessagesThatWaitForThePool_TakeTheirBytesOnly) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_op(v1::OP_UNION);  // which takes keys without values
  const std::string round = Create(spec);
  v1::UpdateChunk chunk = MakeChunk(round, "a", {}, {});
  v1::TensorSlice& slice = *chunk.mutable_slices(0);
  slice.set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
  slice.set_value_encoding(v1::VALUE_ENCODING_NONE);
  slice.set_num_keys(uint64_t{1} << 40);
  std::string message = chunk.SerializeAsString();
  while (message.size() < 16'000) message.append("\x3a\x00", 2);
  const grpc::Slice bytes(message);
  const grpc::ByteBuffer request(&bytes, 1);

  ServerContext& context = server().context();
  while (context.in_flight.reserved() != 0) std::this_thread::yield();
  BusyPool busy(context.pool);
  constexpr size_t kStreams = kSanitized ? 10 : 300;  // a call takes 60 ms there
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    std::promise<grpc::Status> ended;
  };
  std::vector<Call> calls(kStreams);
  grpc::GenericStub stub(client().channel());
  const uint64_t before = ResidentBytes();
  for (Call& call : calls) {
    stub.UnaryCall(&call.context, "/sparseagg.v1.Aggregation/SubmitUpdate", {}, &request, &call.response,
                   [&call](const grpc::Status& status) { call.ended.set_value(status); });
  }
  while (context.in_flight.reserved() != kStreams * (kStreamBytes + message.size())) std::this_thread::yield();
  const uint64_t taken = ResidentBytes() - std::min(before, ResidentBytes());
  busy.Release();
  for (Call& call : calls) {
    EXPECT_THAT(FromGrpc(call.ended.get_future().get()), HasCode(Code::kResourceExhausted));
  }
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  EXPECT_LE(taken, uint64_t{64} << 20);
}

TEST_F(SubmitStreamTest, SmallSubmissions_AreDealtWithWhereTheyArrive) {
  const std::string round = Create(SumSpec());
  EXPECT_FALSE(IsPreparedOnPool(round, 1, 10));
}

TEST_F(SubmitStreamTest, BytesThatAreNoMessage_AreTheClientsFault) {
  const std::string round = Create(SumSpec());
  grpc::GenericStub stub(client().channel());
  grpc::ClientContext context;
  const grpc::Slice slice(std::string("\xff\xff\xff\xff"));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/sparseagg.v1.Aggregation/SubmitUpdate", {}, &request, &response,
                 [&](const grpc::Status& status) { ended.set_value(status); });
  EXPECT_THAT(FromGrpc(ended.get_future().get()), Fails(Code::kInvalidArgument, HasSubstr("not a valid UpdateChunk")));
}

TEST_F(SubmitStreamTest, RefusedWhileMoreArrives_AnswersOnceAndLeavesNothing) {
  const std::string round = Create(SumSpec());
  std::vector<v1::UpdateChunk> chunks;
  for (uint32_t i = 0; i < 100; ++i) chunks.push_back(MakeChunk(round, "a", {i == 3 ? 100 : i}, {1}, i, i == 99));
  for (int repetition = 0; repetition < 50; ++repetition) {
    EXPECT_THAT(client().SubmitStream(chunks), Fails(Code::kInvalidArgument, HasSubstr("key 100")));
  }
  const auto got = client().Get(round);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->num_refused(), 50);
  EXPECT_EQ(got->num_uploads(), 0);
}

}  // namespace
}  // namespace sparseagg::service
