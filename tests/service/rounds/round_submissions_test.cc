// Rounds: committed submissions, listed and withdrawn.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundSubmissionsTest : public SubmissionsFixture {};

// ---- ListSubmissions

TEST_F(RoundSubmissionsTest, List_PagesOfEverySize_AreInBytewiseOrderOfClientIds) {
  const auto round = Open(SumSpec());
  EXPECT_THAT(ClientsOf(*round), IsEmpty());
  for (const char* client : {"b", "\xc3\xa4", "B", "a", "ab", "."})
    ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  for (const size_t size : {1, 2, 3, 5, 6, 7, 1000}) {
    EXPECT_THAT(ClientsOf(*round, size), ElementsAre(".", "B", "a", "ab", "b", "\xc3\xa4")) << size;
  }
  ASSERT_THAT(Put(*round, MakeChunk("", "upload", {1}, {1})), IsOk());
  EXPECT_EQ(ClientsOf(*round).size(), 6) << "an upload that is not committed is listed";
}

TEST_F(RoundSubmissionsTest, List_Submission_HasItsIdsAndFigures) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7, 9, 11}, {1, 2, 3}), IsOk());
  const auto page = round->ListSubmissions(10, "");
  ASSERT_THAT(page, IsOk());
  ASSERT_EQ(page->submissions.size(), 1);
  EXPECT_EQ(page->submissions[0].submission_id, "a-1");
  EXPECT_EQ(page->submissions[0].num_tuples, 3);
  EXPECT_EQ(page->submissions[0].num_bytes, 24);
  EXPECT_FALSE(page->submissions[0].duplicate);
  EXPECT_EQ(page->next_page_token, "");
}

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

TEST_F(RoundSubmissionsTest, List_Ended_IsWhatCounts) {
  const auto done = Open(SumSpec(), "done");
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*done, client, {7}, {1}), IsOk());
  ASSERT_THAT(done->CloseWithOnly(Clients{"b"}), IsOk());
  AwaitEnd(*done);
  EXPECT_THAT(ClientsOf(*done), ElementsAre("b"));
  const auto cancelled = Open(SumSpec(), "cancelled");
  ASSERT_THAT(Submit(*cancelled, "a", {7}, {1}), IsOk());
  ASSERT_THAT(cancelled->Cancel(""), IsOk());
  EXPECT_THAT(ClientsOf(*cancelled), IsEmpty());
}

TEST_F(RoundSubmissionsTest, List_TenThousand_ComesInPagesThatMissNone) {
  const auto round = Open(SumSpec());
  std::vector<std::string> expected;
  for (int i = 0; i < 10'000; ++i) {
    expected.push_back("client-" + std::to_string(100'000 + i * 7 % 10'000));
    ASSERT_THAT(Submit(*round, expected.back(), {}, {}), IsOk());
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(ClientsOf(*round, 999), expected);
}

// ---- Withdraw

TEST_F(RoundSubmissionsTest, Withdraw_Committed_IsAsIfItHadNeverBeenSent) {
  const auto round = Open(MeanSpec());
  ASSERT_THAT(SubmitWeighted(*round, "a", 1, 1), IsOk());
  ASSERT_THAT(SubmitWeighted(*round, "b", 100, 5), IsOk());
  ASSERT_THAT(SubmitWeighted(*round, "c", 3, 3), IsOk());
  EXPECT_THAT(round->Withdraw("b", "b-1"), IsOkAndHolds(true));
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "c"));
  RoundSnapshot snapshot = round->Snapshot();
  EXPECT_EQ(snapshot.num_submissions, 2);
  EXPECT_EQ(snapshot.num_tuples, 2);
  EXPECT_EQ(snapshot.num_bytes, 16);
  EXPECT_EQ(snapshot.num_withdrawn, 1);
  EXPECT_EQ(snapshot.num_refused, 0);
  EXPECT_THAT(CommitNamed(*round, "b", "b-1"), HasCode(Code::kNotFound));
  EXPECT_THAT(round->intake().GetProgress("b", "b-1"), HasCode(Code::kNotFound));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, (1 + 3 * 3) / 4.0f)));
}

TEST_F(RoundSubmissionsTest, Withdraw_NoSuchSubmission_ChangesNothing) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  ASSERT_THAT(Put(*round, MakeChunk("", "upload", {1}, {1})), IsOk());
  const uint64_t reserved = context().budget.reserved();
  EXPECT_THAT(round->Withdraw("b", ""), IsOkAndHolds(false));
  EXPECT_THAT(round->Withdraw("a", "a-2"), IsOkAndHolds(false));
  EXPECT_THAT(round->Withdraw("upload", ""), IsOkAndHolds(false));
  EXPECT_EQ(round->Snapshot().num_submissions, 1);
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  EXPECT_EQ(context().budget.reserved(), reserved);
  EXPECT_THAT(round->Withdraw("a", ""), IsOkAndHolds(true));
  EXPECT_THAT(round->Withdraw("a", ""), IsOkAndHolds(false)) << "a repetition";
}

TEST_F(RoundSubmissionsTest, Withdraw_ByTheIdOfARetry_IsTheSameSubmission) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  v1::UpdateChunk retry = MakeChunk("", "a", {7}, {1});
  retry.set_submission_id("retry");
  ASSERT_THAT(Submit(*round, retry), IsOk());
  EXPECT_THAT(round->Withdraw("a", "retry"), IsOkAndHolds(true));
}

TEST_F(RoundSubmissionsTest, Withdraw_ThenSubmitAgain_CountsTheSameOrOtherContent) {
  const auto round = Open(SumSpec());
  for (const float value : {1.0f, 1.0f, 5.0f}) {
    const auto receipt = Submit(*round, "a", {7}, {value});
    ASSERT_THAT(receipt, IsOk());
    EXPECT_FALSE(receipt->duplicate);
    if (value != 5.0f) {
      ASSERT_THAT(round->Withdraw("a", ""), IsOkAndHolds(true));
    }
  }
  EXPECT_THAT(Submit(*round, "a", {7}, {1}), HasCode(Code::kAlreadyExists));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 5)));
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

TEST_F(RoundSubmissionsTest, Withdraw_NotOpen_IsRefused) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(round->Withdraw("a", ""), HasCode(Code::kFailedPrecondition));
  AwaitEnd(*round);
  EXPECT_THAT(round->Withdraw("a", ""), Fails(Code::kFailedPrecondition, HasSubstr("DONE")));
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 1)));
}

// Other tensors than canonical floats merge when memory is short, and keep what they can until then.
TEST_F(RoundSubmissionsTest, Withdraw_MergesOnArrivalButHasNotYet_TakesItOut) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(10);
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT);
  spec.mutable_aggregation()->set_value_bound(10.0);
  const auto round = Open(spec);
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  ASSERT_THAT(Submit(*round, "b", {7}, {2}), IsOk());
  ASSERT_THAT(round->Withdraw("a", ""), IsOkAndHolds(true));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 2)));
}

TEST_F(RoundSubmissionsTest, Withdraw_MergedOnArrival_IsRefusedAndSaysWhy) {
  const auto round = OpenMerged();
  const uint64_t reserved = context().budget.reserved();
  EXPECT_THAT(round->Withdraw("a", ""),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr("tensor 'v'"), HasSubstr("as they arrived"))));
  EXPECT_THAT(round->Withdraw("none", ""), IsOkAndHolds(false));
  EXPECT_EQ(round->Snapshot().num_submissions, 2);
  EXPECT_EQ(context().budget.reserved(), reserved);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(ResultOf(*round)[0], 2);
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

}  // namespace
}  // namespace sparseagg::service
