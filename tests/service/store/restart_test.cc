// A server with a data directory, started again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/time/clock.h"
#include "service/rounds/round.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/stored_server.h"
#include "tests/service/support/threads.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

class RestartTest : public StoredServer {
 protected:
  RestartTest() : StoredServer(Durability::kSync) {}

  std::string Create(const v1::RoundSpec& spec = SumSpec(), const std::string& id = "r") {
    const auto round = client().Create(spec, id);
    EXPECT_THAT(round, IsOk());
    return round.ok() ? round->name() : "";
  }
  void Submit(const std::string& name, const std::string& who, float value) {
    ASSERT_THAT(client().SubmitStream({MakeChunk(name, who, {1}, {value})}), IsOk());
  }
  std::map<uint64_t, float> ResultOf(const std::string& name) {
    EXPECT_THAT(client().Finish(name), IsOk());
    v1::GetResultRequest request;
    request.set_round(name);
    const auto pages = client().Pages(request);
    EXPECT_THAT(pages, IsOk());
    return pages.ok() ? ToMap(*pages) : std::map<uint64_t, float>{};
  }
};

TEST_F(RestartTest, TimeOfDay_SetBackByAYear_ExtendsNoRound) {
  v1::RoundSpec with_deadline = SumSpec();
  with_deadline.mutable_deadline()->set_seconds(60);
  const std::string open = Create(with_deadline, "open");
  const std::string ended = Create(SumSpec(), "ended");
  Submit(ended, "a", 1);
  EXPECT_THAT(ResultOf(ended), ElementsAre(Pair(1, 1)));
  clock_.SetWall(-absl::Hours(24 * 365));
  Restart();
  const auto after = client().Get(ended);
  ASSERT_THAT(after, IsOk());
  EXPECT_LE(after->close_time().seconds(), after->end_time().seconds());
  EXPECT_EQ(after->expire_time().seconds(), absl::ToUnixSeconds(clock_.WallTime() + options_.limits.max_result_ttl));
  Advance(absl::Seconds(60));
  EXPECT_EQ(client().Wait(open, absl::Minutes(1))->state(), v1::ROUND_STATE_DONE);
  Advance(options_.limits.max_result_ttl);
  while (client().Get(ended).ok()) std::this_thread::yield();
}

TEST_F(RestartTest, TimeOfDay_AheadAtOneStart_DeletesNoResult) {
  const std::string ended = Create(SumSpec(), "ended");
  Submit(ended, "a", 1);
  EXPECT_THAT(ResultOf(ended), ElementsAre(Pair(1, 1)));
  const absl::Duration ttl = options_.limits.max_result_ttl;
  clock_.SetWall(2 * ttl);
  Restart();
  EXPECT_THAT(ResultOf(ended), ElementsAre(Pair(1, 1)));
  clock_.SetWall(-2 * ttl);
  Restart();
  EXPECT_THAT(ResultOf(ended), ElementsAre(Pair(1, 1)));
  // What a run has seen counts: with half of the time over at the latest start, half is left at the next.
  Advance(ttl / 2);
  Restart();
  Restart();
  EXPECT_THAT(ResultOf(ended), ElementsAre(Pair(1, 1)));
  Advance(ttl / 2 + absl::Seconds(1));
  while (client().Get(ended).ok()) std::this_thread::yield();
}

TEST_F(RestartTest, RateOfSubmissions_IsThatOfClients_NotOfARestart) {
  const std::string name = Create();
  for (const char* who : {"a", "b", "c"}) Submit(name, who, 1);
  ASSERT_THAT(client().Put(MakeChunk(name, "d", {1}, {1}, 0, false)), IsOk());
  options_.limits.max_submissions_per_second_per_tenant = 1;
  Restart();
  ASSERT_THAT(client().Get(name), IsOk());
  EXPECT_EQ(client().Get(name)->num_submissions(), 3);
  EXPECT_EQ(client().Get(name)->num_uploads(), 1);
}

TEST_F(RestartTest, CommittedNamedUpload_LateCalls_AreAnswered) {
  const std::string name = Create();
  v1::UpdateChunk chunk = MakeChunk(name, "a", {1}, {1});
  chunk.set_upload_tag("tag");
  ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  Restart();
  const auto status = client().Progress(chunk);
  ASSERT_THAT(status, IsOk());
  EXPECT_TRUE(status->committed());
  EXPECT_EQ(status->next_sequence(), 1);
  const auto committed = client().Commit(chunk);
  ASSERT_THAT(committed, IsOk());
  EXPECT_TRUE(committed->duplicate());
}

TEST_F(RestartTest, HalfDoneUpload_GoesOnWhereItWas) {
  const std::string name = Create();
  const v1::UpdateChunk zero = MakeChunk(name, "a", {1}, {1}, 0, false);
  const v1::UpdateChunk one = MakeChunk(name, "a", {2}, {2}, 1, false);
  const v1::UpdateChunk two = MakeChunk(name, "a", {3}, {3}, 2);
  ASSERT_THAT(client().Put(zero), IsOk());
  ASSERT_THAT(client().Put(one), IsOk());
  Restart();
  auto status = client().Progress(two);
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->next_sequence(), 2);
  EXPECT_EQ(status->received_tuples(), 2);
  EXPECT_EQ(client().Get(name)->num_submissions(), 0);
  ASSERT_THAT(client().Put(two), IsOk());
  Restart();
  status = client().Progress(two);
  ASSERT_THAT(status, IsOk());
  EXPECT_TRUE(status->complete());
  ASSERT_THAT(client().Commit(two), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 1), Pair(2, 2), Pair(3, 3)));
}

TEST_F(RestartTest, ReplacedUpload_DoesNotComeBack) {
  const std::string name = Create();
  v1::UpdateChunk old = MakeChunk(name, "a", {1}, {1}, 0, false);
  old.set_upload_tag("old");
  v1::UpdateChunk fresh = MakeChunk(name, "a", {1}, {2}, 0, true);
  fresh.set_upload_tag("new");
  ASSERT_THAT(client().Put(old), IsOk());
  ASSERT_THAT(client().Put(fresh), IsOk());
  Restart();
  EXPECT_EQ(client().Progress(old)->next_sequence(), 0);
  EXPECT_EQ(client().Progress(fresh)->next_sequence(), 1);
  EXPECT_EQ(client().Get(name)->num_uploads(), 1);
}

TEST_F(RestartTest, DiscardedUpload_DoesNotComeBack) {
  const std::string name = Create();
  const v1::UpdateChunk zero = MakeChunk(name, "a", {1}, {1}, 0, false);
  ASSERT_THAT(client().Put(zero), IsOk());
  Advance(options_.limits.upload_timeout);
  while (client().Get(name)->num_uploads() != 0) {
  }
  Restart();
  EXPECT_THAT(client().Progress(zero), HasCode(Code::kNotFound));
}

TEST_F(RestartTest, RangesOfAResult_StayAndGoWithTheirRound) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_cluster()->add_servers()->set_address("a:1");
  const std::string name = Create(spec, "r");
  Submit(name, "a", 1);
  ASSERT_THAT(client().Seal(name), IsOk());
  v1::PutResultRangeRequest put;
  put.set_round(name);
  *put.mutable_create_time() = client().Get(name)->create_time();
  put.mutable_page()->mutable_slice()->set_tensor("v");
  put.mutable_page()->mutable_slice()->set_keys(std::string(100'000, 'k'));  // beside the database, and within
  const auto call = [&](const std::string& plan) {
    put.set_plan(plan);
    grpc::ClientContext context;
    google::protobuf::Empty answer;
    return FromGrpc(client().stub().PutResultRange(&context, put, &answer));
  };
  const auto get = [&](const std::string& tensor) -> absl::StatusOr<v1::ResultPage> {
    grpc::ClientContext context;
    v1::GetResultRangeRequest request;
    request.set_round(name);
    request.set_tensor(tensor);
    v1::ResultPage page;
    RETURN_IF_ERROR(FromGrpc(client().stub().GetResultRange(&context, request, &page)));
    return page;
  };
  EXPECT_THAT(call("p"), IsOk());
  EXPECT_THAT(call("of another coordinator"), IsOk());
  const auto rows = put.page();
  put.mutable_page()->mutable_slice()->set_tensor("unknown");
  EXPECT_THAT(call("p"), Fails(Code::kInvalidArgument, HasSubstr("unknown")));
  Restart();
  put.mutable_page()->Clear();
  put.mutable_page()->set_ranges("{}");
  EXPECT_THAT(call("p"), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_DONE);
    EXPECT_EQ(get("")->ranges(), "{}");
    EXPECT_EQ(get("v")->SerializeAsString(), rows.SerializeAsString());
    EXPECT_THAT(call("of another coordinator"), HasCode(Code::kFailedPrecondition));
    Restart();
  }
  ASSERT_THAT(client().Delete(name), IsOk());
  Restart();
  EXPECT_THAT(get("v").status(), HasCode(Code::kNotFound));
  EXPECT_EQ(Create(spec, "r"), name);
  EXPECT_THAT(get("v").status(), HasCode(Code::kNotFound));
}

TEST_F(RestartTest, SealedRound_StaysSealed) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_deadline()->set_seconds(60);
  const std::string name = Create(spec);
  Submit(name, "a", 1);
  Submit(name, "b", 2);
  ASSERT_THAT(client().Put(MakeChunk(name, "late", {1}, {1}, 0, false)), IsOk());
  ASSERT_THAT(client().Seal(name), IsOk());
  Kill();
  MustStart();
  for (int i = 0; i < 2; ++i) {
    const auto round = client().Get(name);
    ASSERT_THAT(round, IsOk());
    EXPECT_EQ(round->state(), v1::ROUND_STATE_SEALED);
    EXPECT_EQ(round->num_submissions(), 2);
    EXPECT_EQ(round->num_uploads(), 0);
    EXPECT_FALSE(round->has_close_time());
    EXPECT_THAT(client().SubmitStream({MakeChunk(name, "c", {1}, {1})}),
                Fails(Code::kFailedPrecondition, "the round is SEALED"));
    EXPECT_TRUE(client().SubmitStream({MakeChunk(name, "a", {1}, {1})})->duplicate());
    Advance(absl::Hours(1));  // beyond the deadline
    v1::InspectRoundRequest request;
    request.set_round(name);
    EXPECT_THAT(Unpacked<double>(client().Inspect(request)->gram()), ElementsAre(1, 2, 4));
    Restart();
  }
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 3)));
  Restart();
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_DONE);
}

// The weights are stored with the close: the result is computed again, to the same bits.
TEST_F(RestartTest, ClientWeights_AreMultipliedAgain) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_op(v1::OP_MEAN);
  const std::string name = Create(spec);
  Submit(name, "a", 1);
  Submit(name, "b", 2);
  Submit(name, "c", 4);
  ASSERT_THAT(client().Seal(name), IsOk());
  const std::vector<std::pair<std::string, double>> weights = {{"a", 0.3}, {"b", 0}, {"c", 0.1}};
  ASSERT_THAT(client().CloseWithWeights(name, weights), IsOk());
  ASSERT_EQ(client().Wait(name, absl::Seconds(10))->state(), v1::ROUND_STATE_DONE);
  const std::string before = client().ResultBytes(name);
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, static_cast<float>((0.3 * 1 + 0.1 * 4) / (0.3 + 0.1)))));
  for (int i = 0; i < 2; ++i) {
    i == 0 ? Kill() : Stop();
    MustStart();
    EXPECT_EQ(client().ResultBytes(name), before);
    EXPECT_THAT(client().CloseWithWeights(name, weights), IsOk()) << "a repetition";
    EXPECT_THAT(client().CloseWithWeights(name, {{"a", 0.3}, {"c", 0.2}}), HasCode(Code::kFailedPrecondition));
    v1::ListSubmissionsRequest list;
    list.set_round(name);
    const auto page = client().Submissions(list);
    ASSERT_THAT(page, IsOk());
    ASSERT_EQ(page->submissions_size(), 2);
    EXPECT_EQ(page->submissions(1).client_weight(), 0.1);
    EXPECT_EQ(page->submissions(1).weight(), 1.0);
    EXPECT_EQ(page->submissions(1).content_hash().size(), 16);
  }
}

TEST_F(RestartTest, Deadline_CountsFromTheCreation) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_deadline()->set_seconds(60);
  const std::string name = Create(spec);
  Submit(name, "a", 1);
  Advance(absl::Seconds(59));
  Restart();
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_OPEN);
  Advance(absl::Seconds(1));
  EXPECT_EQ(client().Wait(name, absl::Seconds(10))->state(), v1::ROUND_STATE_DONE);
}

TEST_F(RestartTest, LowerLimits_DoNotRefuseWhatWasAccepted) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({MakeChunk(name, "a", {1, 2}, {1, 1})}), IsOk());
  options_.limits.max_tuples_per_submission = 1;
  options_.limits.max_submissions = 1;
  Restart();
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(1, 1), Pair(2, 1)));
}

// What the closure of an answer owns, such as a call with its permits, when it is destroyed after the answer.
class OwnedByAClosure {
 public:
  OwnedByAClosure(std::weak_ptr<Round> round, bool* has_outlived_the_server)
      : round_(std::move(round)), has_outlived_the_server_(*has_outlived_the_server) {}
  ~OwnedByAClosure() {
    // A stop that does not wait for this object frees the rounds meanwhile.
    for (int i = 0; i < 200 && !round_.expired(); ++i) absl::SleepFor(absl::Milliseconds(1));
    has_outlived_the_server_ = round_.expired();
  }
  OwnedByAClosure(const OwnedByAClosure&) = delete;
  OwnedByAClosure& operator=(const OwnedByAClosure&) = delete;

 private:
  const std::weak_ptr<Round> round_;
  bool& has_outlived_the_server_;
};

TEST_F(RestartTest, Stop_WaitsForWhatTheClosuresOfAnswersOwn) {
  bool has_outlived_the_server = false;
  const std::string name = Create();
  ASSERT_THAT(client().Put(MakeChunk(name, "a", {1}, {1}, 0, false)), IsOk());  // written, and not synced
  Event answered;
  {
    const auto round = server_->registry().Find("default", "r");
    ASSERT_THAT(round, IsOk());
    (*round)->journal().WhenDurable([owned = std::make_shared<OwnedByAClosure>(*round, &has_outlived_the_server),
                                     &answered](const absl::Status&) { answered.Notify(); });
  }
  answered.Wait();
  Stop();
  EXPECT_FALSE(has_outlived_the_server);
}

TEST_F(RestartTest, Stop_WaitsForWhatTasksOfThePoolOwn) {
  bool has_outlived_the_server = false;
  Create();
  Event ran;
  {
    const auto round = server_->registry().Find("default", "r");
    ASSERT_THAT(round, IsOk());
    server_->context().pool.Post(
        [owned = std::make_shared<OwnedByAClosure>(*round, &has_outlived_the_server), &ran] { ran.Notify(); });
  }
  ran.Wait();
  Stop();
  EXPECT_FALSE(has_outlived_the_server);
}

TEST_F(RestartTest, OneShotAggregation_LeavesNothing) {
  ASSERT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1})}), IsOk());
  server_.reset();
  const auto store = Store::Open({options_.data_dir, Durability::kSync, 0});
  ASSERT_THAT(store, IsOk());
  EXPECT_THAT(*(*store)->ReadRounds(), IsEmpty());
}

// Stored by a newer server. To sum without the option that the spec had would give another result than was asked for.
TEST_F(RestartTest, RoundWithAnOptionThatThisServerDoesNotKnow_StopsTheStart) {
  Create();
  Stop();
  {
    const auto store = Store::Open({options_.data_dir, Durability::kSync, 0});
    ASSERT_THAT(store, IsOk());
    const auto rounds = (*store)->ReadRounds();
    ASSERT_THAT(rounds, IsOk());
    RoundRecord record = rounds->at(0).record;
    record.spec += "\xd8\x06\x01";  // field 107, a varint
    const auto ticket = (*store)->PutRound(rounds->at(0).number, record);
    ASSERT_THAT(ticket, IsOk());
    ASSERT_THAT((*store)->AwaitDurable(*ticket), IsOk());
  }
  EXPECT_THAT(Start(), Fails(Code::kFailedPrecondition,
                             HasSubstr("cannot restore round 'r' of tenant 'default' from the data directory: unknown "
                                       "field 107 in RoundSpec: this server is older than the one that stored it")));
}

}  // namespace
}  // namespace sparseagg::service
