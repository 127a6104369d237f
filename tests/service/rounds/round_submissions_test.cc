// Rounds: committed submissions, listed and withdrawn, and a close that says how they count. What users see of it is
// tested in tests/python/every_address.
#include <string>
#include <vector>

#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;
using Weights = std::vector<Round::ClientWeight>;

class RoundSubmissionsTest : public SubmissionsFixture {};

TEST_F(RoundSubmissionsTest, List_ChangesBetweenPages_LoseNothingElse) {
  const auto round = Open(SumSpec());
  for (const char* client : {"b", "d", "f", "h"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  const auto page = round->ListSubmissions(2, "");
  ASSERT_THAT(page, IsOk());
  ASSERT_THAT(round->Withdraw("d", ""), IsOkAndHolds(true));  // the last one of the first page
  ASSERT_THAT(round->Withdraw("f", ""), IsOkAndHolds(true));  // the first one of the second page
  for (const char* client : {"a", "e", "z"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  const auto next = round->ListSubmissions(10, page->next_page_token);
  ASSERT_THAT(next, IsOk());
  std::vector<std::string> clients;
  for (const Receipt& receipt : next->submissions) clients.push_back(receipt.client_id);
  EXPECT_THAT(clients, ElementsAre("e", "h", "z"));
}

TEST_F(RoundSubmissionsTest, List_TokenOfAnotherRound_IsRefused) {
  std::string token;
  {
    const auto round = Open(SumSpec());
    for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
    token = round->ListSubmissions(1, "")->next_page_token;
    ASSERT_THAT(round->ListSubmissions(1, token), IsOk());
    ASSERT_THAT(registry().Delete(kDefaultTenant, "r"), IsOk());
  }
  Advance(absl::Nanoseconds(1));
  const auto round = Open(SumSpec());  // of the same name
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  for (const std::string& bad : {token, std::string("x"), std::string(".a"), std::string("1.a"), std::string(".")}) {
    EXPECT_THAT(round->ListSubmissions(1, bad), Fails(Code::kInvalidArgument, HasSubstr("'" + bad + "'")));
  }
}

TEST_F(RoundSubmissionsTest, Withdraw_ByTheIdOfARetry_IsTheSameSubmission) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  v1::UpdateChunk retry = MakeChunk("", "a", {7}, {1});
  retry.set_submission_id("retry");
  ASSERT_THAT(Submit(*round, retry), IsOk());
  EXPECT_THAT(round->Withdraw("a", "retry"), IsOkAndHolds(true));
}

TEST_F(RoundSubmissionsTest, Withdraw_GivesItsMemoryBack) {
  const auto round = Open(SumSpec(1'000'000));
  std::vector<uint32_t> keys(10'000);
  for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = 7919 * i % 999'983;  // unsorted
  const auto submit = [&](const std::string& client) {
    return Submit(*round, client, keys, std::vector<float>(keys.size(), 1)).status();
  };
  for (const char* client : {"a", "b", "c", "d", "e"}) ASSERT_THAT(submit(client), IsOk());
  const uint64_t five = context().budget.reserved();
  // The sixth needs no larger vectors in the aggregation.
  ASSERT_THAT(submit("f"), IsOk());
  const uint64_t six = context().budget.reserved();
  EXPECT_GE(six, five + 80'000);
  ASSERT_THAT(round->Withdraw("b", ""), IsOkAndHolds(true));
  EXPECT_EQ(context().budget.reserved(), five);
  ASSERT_THAT(submit("b"), IsOk());
  EXPECT_EQ(context().budget.reserved(), six);
}

TEST_F(RoundSubmissionsTest, Withdraw_RoundWithMaxSubmissions_ClosesOnlyWithThatMany) {
  limits_.max_submissions = 3;
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(3);
  const auto round = Open(spec);
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  ASSERT_THAT(Submit(*round, "b", {7}, {2}), IsOk());
  ASSERT_THAT(round->Withdraw("a", ""), IsOkAndHolds(true));
  ASSERT_THAT(Submit(*round, "c", {7}, {4}), IsOk());
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  ASSERT_THAT(Submit(*round, "d", {7}, {8}), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 14)));
}

// The answer to an upload that was committed, when its submission has been withdrawn since.
TEST_F(RoundSubmissionsTest, Withdraw_ThenTheCommitOfTheSameStreamAgain_FindsNothing) {
  const auto round = Open(SumSpec());
  const auto upload = round->intake().OpenStreamUpload("a", "a-1", nullptr);
  ASSERT_THAT(upload, IsOk());
  Chunk empty;
  empty.last = true;
  ASSERT_THAT(round->intake().Append(**upload, empty), IsOk());
  ASSERT_THAT(round->intake().Commit(**upload), IsOk());
  ASSERT_THAT(round->Withdraw("a", ""), IsOkAndHolds(true));
  EXPECT_THAT(round->intake().Commit(**upload), HasCode(Code::kNotFound));
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  EXPECT_THAT(round->intake().Commit(**upload), HasCode(Code::kNotFound)) << "what counts has other content";
  EXPECT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  EXPECT_THAT(round->intake().Commit(**upload), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundSubmissionsTest, CloseWithOnly_WhileTheMergeRuns_AnswersAtOnce) {
  Hold finishing;
  hooks_.finish = finishing.Hook();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing.Wait();
  EXPECT_THAT(round->CloseWithOnly(Clients{"a"}), IsOk());
  EXPECT_THAT(round->Withdraw("a", ""), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a"));
  finishing.Release();
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 1)));
}

// An upload of a client whose submission counts may be a retry. One of a client who is left out is too late.
TEST_F(RoundSubmissionsTest, CloseWithOnly_OpenUploads_AreDiscardedButRetriesOfWhatCounts) {
  const auto round = Open(SumSpec());
  for (const char* client : {"in", "out"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  for (const char* client : {"in", "out"}) {
    ASSERT_THAT(Put(*round, MakeChunk("", client, {7}, {1}, 0, false)), IsOk());  // a retry, in other chunks
  }
  ASSERT_EQ(round->Snapshot().num_uploads, 2);
  ASSERT_THAT(round->CloseWithOnly(Clients{"in"}), IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  const auto retry = CommitNamed(*round, "in", "in-1");
  ASSERT_THAT(retry, IsOk());
  EXPECT_TRUE(retry->duplicate);
  EXPECT_THAT(CommitNamed(*round, "out", "out-1"), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundSubmissionsTest, CloseWithWeights_MergedOnArrival_TakesOnlyOnes) {
  const auto round = OpenMerged();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 0}}),
              Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v'")));
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 2}}),
              Fails(Code::kInvalidArgument, HasSubstr("tensor 'v'")));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  ASSERT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 1}}), IsOk());
  EXPECT_EQ(ResultOf(*round)[0], 2);
}

}  // namespace
}  // namespace sparseagg::service
