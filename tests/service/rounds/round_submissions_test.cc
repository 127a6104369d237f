// Rounds: committed submissions, listed and withdrawn, and a close that says how they count. What users see of it is
// tested in tests/python/every_address.
#include <string>
#include <vector>

#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/registry.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
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

// ---- Rounds of a cluster: what a server has beyond its share of max_submissions can be taken out again.

constexpr bool kCoordinator = true;

class RoundShareTest : public SubmissionsFixture {
 protected:
  // Submits for clients with one key each.
  static void SubmitSmall(Round& round, const Clients& clients) {
    for (const std::string& client : clients) ASSERT_THAT(Submit(round, client, {7}, {0.5}), IsOk());
  }
  static std::string PartialOf(Round& round) {
    const auto page = SealedReader(round).ExportPartial({0, {}, 1 << 20}, "");
    EXPECT_THAT(page, IsOk());
    return page.ok() ? page->blocks : "";
  }
};

TEST_F(RoundShareTest, Withdraw_SealedRoundOfACluster_GivesBackWhatIsBeyondItsShare) {
  std::string expected;
  {
    const auto without = OpenMerged(/*num_servers=*/1, "without");
    SubmitSmall(*without, {"c"});
    ASSERT_THAT(without->Seal(), IsOk());
    expected = PartialOf(*without);
    ASSERT_THAT(registry().Delete(kDefaultTenant, "without"), IsOk());
  }
  RunPendingTasks();  // which may hold that round, whose memory the next one needs
  const auto round = OpenMerged(/*num_servers=*/2);
  SubmitSmall(*round, {"c", "d"});
  EXPECT_THAT(Submit(*round, "e", {7}, {0.5}),
              Fails(Code::kResourceExhausted, "there are 4 of max_submissions 4 submissions already"));
  const uint64_t reserved = round->budget().reserved();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(round->Withdraw("d", ""), Fails(Code::kFailedPrecondition, HasSubstr("the round is SEALED")))
      << "by the client";
  EXPECT_THAT(round->Withdraw("a", "", kCoordinator), Fails(Code::kFailedPrecondition, HasSubstr("have been merged")));
  EXPECT_THAT(round->Withdraw("e", "", kCoordinator), IsOkAndHolds(false));
  EXPECT_THAT(round->Withdraw("d", "", kCoordinator), IsOkAndHolds(true));
  EXPECT_THAT(round->Withdraw("d", "", kCoordinator), IsOkAndHolds(false)) << "a repetition";
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "b", "c"));
  EXPECT_LT(round->budget().reserved(), reserved);
  EXPECT_EQ(PartialOf(*round), expected);
  EXPECT_THAT(round->Withdraw("c", "", kCoordinator), Fails(Code::kFailedPrecondition, HasSubstr("have been merged")))
      << "an export has merged it";
  EXPECT_EQ(PartialOf(*round), expected);
}

TEST_F(RoundShareTest, Withdraw_SealedRoundOfOneServer_IsRefused) {
  const auto round = Open(SumSpec());
  SubmitSmall(*round, {"a"});
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(round->Withdraw("a", "", kCoordinator), Fails(Code::kFailedPrecondition, "the round is SEALED"));
}

TEST_F(RoundShareTest, SealedReader_SubmissionIsWithdrawnBetweenPages_IsBegunAgain) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_cluster()->add_servers()->set_address("a:1");
  const auto round = Open(spec);
  SubmitSmall(*round, {"a", "b", "c"});
  ASSERT_THAT(round->Seal(), IsOk());
  ExportQuery query;
  query.max_bytes = 1;
  const auto first = SealedReader(*round).Export(query, "");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(SealedReader(*round).Export(query, first->next_page_token), IsOk());
  const auto inspect = [&](const std::string& token) {
    return SealedReader(*round).Inspect({}, 1, token, [] { return false; });
  };
  const auto inspected = inspect("");
  ASSERT_THAT(inspected, IsOk());
  ASSERT_THAT(inspect(inspected->next_page_token), IsOk());
  ASSERT_THAT(round->Withdraw("a", "", kCoordinator), IsOkAndHolds(true));
  EXPECT_THAT(SealedReader(*round).Export(query, first->next_page_token),
              Fails(Code::kFailedPrecondition, HasSubstr("withdrawn since")));
  EXPECT_THAT(inspect(inspected->next_page_token), Fails(Code::kFailedPrecondition, HasSubstr("withdrawn since")));
}

TEST_F(RoundShareTest, Submit_PartialBeyondTheShare_IsRefused) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_op(v1::OP_MAX);
  spec.set_max_submissions(4);
  spec.set_stay_open(true);
  spec.set_accept_partials(true);
  std::string partial;
  {
    const auto leaf = Open(spec, "leaf");
    SubmitSmall(*leaf, {"a", "b", "c"});
    ASSERT_THAT(leaf->Seal(), IsOk());
    partial = PartialOf(*leaf);
  }
  for (const char* address : {"a:1", "a:2"}) spec.mutable_cluster()->add_servers()->set_address(address);
  const auto round = Open(spec);
  SubmitSmall(*round, {"a", "b"});
  v1::UpdateChunk chunk = MakeChunk("", "leaf", {}, {});
  v1::TensorSlice& slice = *chunk.mutable_slices(0);
  slice.clear_keys();
  slice.set_key_encoding(v1::KEY_ENCODING_UNSPECIFIED);
  slice.set_value_encoding(v1::VALUE_ENCODING_PARTIAL);
  slice.set_values(partial);
  EXPECT_THAT(Submit(*round, chunk), Fails(Code::kResourceExhausted,
                                           "there are 2 of max_submissions 4 submissions already, and the partial has "
                                           "3, beyond this server's share of 2"));
  SubmitSmall(*round, {"c", "d"});
}

// ---- What one tenant may take, and that others have theirs.

class TenantLimitsTest : public RoundFixture {
 protected:
  absl::StatusOr<std::shared_ptr<Round>> OpenFor(const std::string& tenant, const v1::RoundSpec& spec = SumSpec()) {
    ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(spec, limits_));
    config.tenant = tenant;
    return registry().Create(std::move(config));
  }
  // A first chunk, after which the upload is open.
  static absl::Status Begin(Round& round, const std::string& client) {
    v1::UpdateChunk chunk = MakeChunk("", client, {1}, {1});
    chunk.set_last(false);
    return Put(round, chunk).status();
  }
  std::string MetricsText() {
    return context().metrics.Text([] { return std::vector<GaugeValue>(); });
  }
};

TEST_F(TenantLimitsTest, OpenRounds_OfOneTenant_LeaveThoseOfOthers) {
  limits_.max_open_rounds = 3;
  limits_.max_open_rounds_per_tenant = 2;
  const auto first = OpenFor("red");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(OpenFor("red"), IsOk());
  EXPECT_THAT(OpenFor("red"), Fails(Code::kResourceExhausted, HasSubstr("max_open_rounds_per_tenant 2 rounds")));
  EXPECT_THAT(MetricsText(), HasSubstr("sparseagg_tenant_refused_total{limit=\"open_rounds\"} 1\n"));
  EXPECT_THAT(OpenFor("blue"), IsOk());
  // The limit of the server counts all tenants.
  EXPECT_THAT(OpenFor("blue"), Fails(Code::kResourceExhausted, HasSubstr("max_open_rounds 3 rounds")));
  EXPECT_THAT(MetricsText(), HasSubstr("sparseagg_tenant_refused_total{limit=\"open_rounds\"} 1\n"));
  ASSERT_THAT((*first)->Close(), IsOk());
  AwaitEnd(**first);
  EXPECT_THAT(OpenFor("red"), IsOk());
}

TEST_F(TenantLimitsTest, Memory_OfOneTenant_LeavesThatOfOthers) {
  limits_.max_memory_per_tenant = 1 << 20;
  v1::RoundSpec dense = SumSpec(200'000);
  dense.mutable_tensors(0)->mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
  const auto red = OpenFor("red", dense);  // 800 KB
  ASSERT_THAT(red, IsOk());
  EXPECT_THAT(OpenFor("red", dense),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("max_memory_per_tenant 1048576"), HasSubstr("dense"))));
  EXPECT_THAT(OpenFor("blue", dense), IsOk());
  ASSERT_THAT(registry().Delete("red", (*red)->config().id), IsOk());
  RunPendingTasks();
}

TEST_F(TenantLimitsTest, Memory_OfTheServer_IsThatOfAllTenants) {
  limits_.max_memory_per_tenant = 1 << 20;
  ASSERT_THAT(OpenFor("red"), IsOk());
  ASSERT_THAT(OpenFor("blue"), IsOk());
  const uint64_t red = context().tenants.Of("red").budget.reserved();
  const uint64_t blue = context().tenants.Of("blue").budget.reserved();
  EXPECT_GT(red, 0);
  EXPECT_EQ(context().budget.reserved(), red + blue);
}

TEST_F(TenantLimitsTest, Uploads_OfOneTenant_LeaveThoseOfOthers) {
  limits_.max_uploads_per_tenant = 1;
  const auto red = *OpenFor("red");
  const auto other_red = *OpenFor("red");
  const auto blue = *OpenFor("blue");
  ASSERT_THAT(Begin(*red, "a"), IsOk());
  EXPECT_THAT(Begin(*other_red, "b"), Fails(Code::kResourceExhausted, HasSubstr("max_uploads_per_tenant 1 uploads")));
  EXPECT_THAT(MetricsText(), HasSubstr("sparseagg_tenant_refused_total{limit=\"uploads\"} 1\n"));
  EXPECT_THAT(Begin(*blue, "a"), IsOk());
  ASSERT_THAT(Put(*red, MakeChunk("", "a", {2}, {1}, 1)), IsOk());
  ASSERT_THAT(CommitNamed(*red, "a", MakeChunk("", "a", {}, {}).submission_id()), IsOk());
  EXPECT_THAT(Begin(*other_red, "b"), IsOk());
}

TEST_F(TenantLimitsTest, SubmissionsPerSecond_ComeAgainWithTime) {
  limits_.max_submissions_per_second_per_tenant = 2;
  const auto red = *OpenFor("red");
  const auto blue = *OpenFor("blue");
  ASSERT_THAT(Begin(*red, "a"), IsOk());
  ASSERT_THAT(Begin(*red, "b"), IsOk());
  const absl::Status refused = Begin(*red, "c");
  EXPECT_THAT(refused, Fails(Code::kResourceExhausted, HasSubstr("max_submissions_per_second_per_tenant 2 uploads")));
  EXPECT_EQ(RetryDelayMs(refused), "500");
  EXPECT_THAT(Begin(*blue, "c"), IsOk());
  Advance(absl::Milliseconds(499));
  EXPECT_THAT(Begin(*red, "c"), HasCode(Code::kResourceExhausted));
  Advance(absl::Milliseconds(2));
  EXPECT_THAT(Begin(*red, "c"), IsOk());
  EXPECT_THAT(Begin(*red, "d"), HasCode(Code::kResourceExhausted));
  // A rest does not save up more than a second's worth.
  Advance(absl::Seconds(100));
  EXPECT_THAT(Begin(*red, "d"), IsOk());
  EXPECT_THAT(Begin(*red, "e"), IsOk());
  EXPECT_THAT(Begin(*red, "f"), HasCode(Code::kResourceExhausted));
}

}  // namespace
}  // namespace sparseagg::service
