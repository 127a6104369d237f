// The timeline of a round.
#include <atomic>
#include <future>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

class TimelineTest : public ServerFixture {
 protected:
  v1::StageTime StageOf(const std::string& round, const std::string& stage) {
    const auto got = client().Get(round);
    EXPECT_THAT(got, IsOk());
    for (const v1::StageTime& time : got->timeline().stages()) {
      if (time.stage() == stage) return time;
    }
    ADD_FAILURE() << "no stage " << stage;
    return {};
  }
  static absl::Duration Of(const google::protobuf::Duration& duration) {
    return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  }
};

TEST_F(TimelineTest, Stages_OfAWholeRound_HaveItsBytesAndAreBusy) {
  const std::string round = Create(SumSpec());
  const std::vector<v1::UpdateChunk> chunks = {MakeChunk(round, "a", {1, 2}, {1, 2}, 0, false),
                                               MakeChunk(round, "a", {3}, {3}, 1, true)};
  ASSERT_THAT(client().SubmitStream(chunks), IsOk());
  ASSERT_THAT(client().SubmitUnary({MakeChunk(round, "b", {1}, {1})}), IsOk());
  ASSERT_THAT(client().Finish(round), IsOk());
  const std::string pages = client().ResultBytes(round);

  const auto got = client().Get(round);
  ASSERT_THAT(got, IsOk());
  std::string names;
  for (const v1::StageTime& time : got->timeline().stages()) names += time.stage() + " ";
  EXPECT_EQ(names, "receive decode prepare merge encode ");
  const uint64_t sent =
      chunks[0].ByteSizeLong() + chunks[1].ByteSizeLong() + MakeChunk(round, "b", {1}, {1}).ByteSizeLong();
  EXPECT_EQ(StageOf(round, "receive").bytes(), sent);
  EXPECT_EQ(StageOf(round, "decode").bytes(), 32);
  EXPECT_EQ(StageOf(round, "prepare").bytes(), 32);
  EXPECT_EQ(StageOf(round, "merge").bytes(), 32);
  EXPECT_EQ(StageOf(round, "encode").bytes(), pages.size());
  for (const char* stage : {"decode", "prepare", "merge", "encode"}) {
    EXPECT_GT(Of(StageOf(round, stage).busy()), absl::ZeroDuration()) << stage;
  }
}

TEST_F(TimelineTest, Receive_ClientThatTakesItsTime_IsTheLongestPole) {
  manual_time_ = true;
  const std::string round = Create(SumSpec());
  grpc::ClientContext context;
  v1::CommitSubmissionResponse submission;
  const auto writer = client().stub().SubmitUpdate(&context, &submission);
  ASSERT_TRUE(writer->Write(MakeChunk(round, "a", {1}, {1}, 0, false)));
  // The server reads the second chunk while it decodes the first.
  while (client().Get(round)->num_uploads() != 1) {
  }
  Advance(absl::Seconds(3));
  ASSERT_TRUE(writer->Write(MakeChunk(round, "a", {2}, {2}, 1, true)));
  writer->WritesDone();
  ASSERT_THAT(FromGrpc(writer->Finish()), IsOk());
  EXPECT_EQ(Of(StageOf(round, "receive").wait()), absl::Seconds(3));
  EXPECT_EQ(Of(StageOf(round, "receive").busy()), absl::ZeroDuration());
  EXPECT_EQ(client().Get(round)->timeline().longest(), "receive");
}

TEST_F(TimelineTest, Merge_SubmissionsBeforeIt_IsWaiting) {
  manual_time_ = true;
  Event adding;
  Event go_on;
  std::atomic<int> adds = 0;
  hooks_.add = [&] {
    if (adds++ == 0) {
      adding.Notify();
      go_on.Wait();
    }
    return absl::OkStatus();
  };
  const std::string round = Create(SumSpec());
  auto first = std::async(std::launch::async, [&] { return client().SubmitUnary({MakeChunk(round, "a", {1}, {1})}); });
  adding.Wait();
  Advance(absl::Seconds(2));
  go_on.Notify();
  ASSERT_THAT(first.get(), IsOk());
  EXPECT_EQ(Of(StageOf(round, "merge").busy()), absl::Seconds(2));
  EXPECT_EQ(client().Get(round)->timeline().longest(), "merge");
}

}  // namespace
}  // namespace sparseagg::service
