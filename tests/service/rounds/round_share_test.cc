// Rounds of a cluster: what a server has beyond its share of max_submissions can be taken out again.
#include <string>

#include "service/rounds/sealed_reader.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

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
  }
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

}  // namespace
}  // namespace sparseagg::service
