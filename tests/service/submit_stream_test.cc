// SubmitUpdate: messages that come faster than they are decoded, or are none.
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>

#include "tests/service/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class SubmitStreamTest : public ServerFixture {};

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
  EXPECT_THAT(FromGrpc(ended.get_future().get()), Fails(Code::kInvalidArgument, HasSubstr("no UpdateChunk")));
}

TEST_F(SubmitStreamTest, ManySmallChunksAtOnce_AreTakenInOrder) {
  const std::string round = Create(SumSpec(10'000));
  std::vector<v1::UpdateChunk> chunks;
  for (uint32_t i = 0; i < 500; ++i) chunks.push_back(MakeChunk(round, "a", {i}, {1}, i, i == 499));
  ASSERT_THAT(client().SubmitStream(chunks), IsOk());
  EXPECT_EQ(client().Get(round)->num_tuples(), 500);
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
