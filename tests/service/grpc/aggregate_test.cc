// The Aggregate call.
#include <memory>
#include <thread>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class AggregateTest : public ServerFixture {
 protected:
  ~AggregateTest() override {
    // No test may leave a private round behind.
    while (server().context().open_rounds.taken() != 0) std::this_thread::yield();
  }
};

TEST_F(AggregateTest, Aggregate_InterleavedClients_AreMerged) {
  v1::UpdateChunk unnamed = MakeChunk("", "b", {2}, {4});
  unnamed.clear_submission_id();
  const auto pages = client().Aggregate(
      SumSpec(), {MakeChunk("", "a", {1}, {1}, 0, false), unnamed, MakeChunk("", "a", {2}, {2}, 1, true)});
  ASSERT_THAT(pages, IsOk());
  EXPECT_THAT(ToMap(*pages), ElementsAre(Pair(1, 1), Pair(2, 6)));
  const v1::Round& round = pages->front().round();
  EXPECT_EQ(round.name(), "");
  EXPECT_EQ(round.state(), v1::ROUND_STATE_DONE);
  EXPECT_EQ(round.num_submissions(), 2);
  EXPECT_EQ(round.num_tuples(), 3);
  EXPECT_EQ(pages->front().summary().name(), "v");
}

TEST_F(AggregateTest, Aggregate_SameClientTwice_IsADuplicateOrARefusal) {
  const v1::UpdateChunk chunk = MakeChunk("", "a", {1}, {1});
  const auto pages = client().Aggregate(SumSpec(), {chunk, chunk});
  ASSERT_THAT(pages, IsOk());
  EXPECT_THAT(ToMap(*pages), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(client().Aggregate(SumSpec(), {chunk, MakeChunk("", "a", {1}, {2})}),
              Fails(Code::kAlreadyExists, HasSubstr("client 'a'")));
}

TEST_F(AggregateTest, Aggregate_ChunkMissing_IsRefused) {
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1}, 0, false)}),
              Fails(Code::kFailedPrecondition, HasSubstr("client 'a'")));
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1}, 1, true)}),
              Fails(Code::kFailedPrecondition, HasSubstr("chunk 0 is expected next")));
}

TEST_F(AggregateTest, Aggregate_SpecNotFirstOrTwice_IsRefused) {
  for (const bool spec_first : {false, true}) {
    grpc::ClientContext context;
    const auto stream = client().stub().Aggregate(&context);
    v1::AggregateRequest spec;
    *spec.mutable_spec() = SumSpec();
    v1::AggregateRequest chunk;
    *chunk.mutable_chunk() = MakeChunk("", "a", {1}, {1});
    stream->Write(spec_first ? spec : chunk);
    stream->Write(spec);
    stream->WritesDone();
    v1::ResultPage page;
    EXPECT_FALSE(stream->Read(&page));
    EXPECT_THAT(FromGrpc(stream->Finish()), Fails(Code::kInvalidArgument, HasSubstr("first message")));
  }
}

TEST_F(AggregateTest, Aggregate_EmptyStream_IsRefused) {
  grpc::ClientContext context;
  const auto stream = client().stub().Aggregate(&context);
  stream->WritesDone();
  v1::ResultPage page;
  EXPECT_FALSE(stream->Read(&page));
  EXPECT_THAT(FromGrpc(stream->Finish()), Fails(Code::kInvalidArgument, HasSubstr("no spec")));
}

TEST_F(AggregateTest, Aggregate_CancelledWhileMerging_LeavesNothingBehind) {
  // Shared with the hook, which may still run when the test ends.
  const auto finishing = std::make_shared<Event>();
  const auto go = std::make_shared<Event>();
  hooks_.finish = [finishing, go] {
    finishing->Notify();
    go->Wait();
    return absl::OkStatus();
  };
  grpc::ClientContext context;
  const auto stream = client().stub().Aggregate(&context);
  v1::AggregateRequest request;
  *request.mutable_spec() = SumSpec();
  ASSERT_TRUE(stream->Write(request));
  *request.mutable_chunk() = MakeChunk("", "a", {1}, {1});
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  finishing->Wait();
  context.TryCancel();
  EXPECT_THAT(FromGrpc(stream->Finish()), HasCode(Code::kCancelled));
  // The round has ended, although the merge has not.
  while (server().context().open_rounds.taken() != 0) std::this_thread::yield();
  go->Notify();
}

TEST_F(AggregateTest, Aggregate_SpecAsLargeAsMaxTensorsAllows_IsTaken) {
  options_.limits.max_tensors = 5000;
  v1::RoundSpec spec;
  for (int i = 0; i < 4500; ++i) {
    *spec.add_tensors() = SumSpec().tensors(0);
    spec.mutable_tensors(i)->set_name(std::to_string(i) + std::string(240, 'x'));
  }
  ASSERT_GT(spec.ByteSizeLong(), size_t{1} << 20);
  EXPECT_THAT(client().Aggregate(spec, {}), IsOk());
}

TEST_F(AggregateTest, Aggregate_SpecFarBeyondMaxTensors_IsRefusedByTheLimitsName) {
  options_.limits.max_tensors = 3;
  v1::RoundSpec spec = SumSpec();
  spec.mutable_tensors(0)->set_name(std::string(100'000, 'x'));
  EXPECT_THAT(client().Aggregate(spec, {}),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("65536 bytes"), HasSubstr("max_tensors 3"))));
}

TEST_F(AggregateTest, Aggregate_CancelledMidStream_GivesItsMemoryBack) {
  {
    grpc::ClientContext context;
    const auto stream = client().stub().Aggregate(&context);
    v1::AggregateRequest request;
    *request.mutable_spec() = SumSpec();
    ASSERT_TRUE(stream->Write(request));
    *request.mutable_chunk() = MakeChunk("", "a", {1}, {1}, 0, false);
    ASSERT_TRUE(stream->Write(request));
    while (server().context().uploads.taken() == 0) std::this_thread::yield();
    context.TryCancel();
    stream->Finish();
  }
  while (server().context().budget.reserved() != 0) std::this_thread::yield();
  EXPECT_EQ(server().context().uploads.taken(), 0);
}

}  // namespace
}  // namespace sparseagg::service
