// Rounds: what happens to uploads and commits, repeated and in the wrong order.
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundUploadsTest : public RoundFixture {
 protected:
  // Of client "a", submission "a-1".
  static v1::UpdateChunk Tagged(const std::string& tag, const std::vector<uint32_t>& keys,
                                const std::vector<float>& values, uint64_t sequence = 0, bool last = true) {
    v1::UpdateChunk chunk = MakeChunk("", "a", keys, values, sequence, last);
    chunk.set_upload_tag(tag);
    return chunk;
  }
};

TEST_F(RoundUploadsTest, PutChunk_AfterTheRoundClosed_OfAnUploadThatItCutOff_IsNoSecondRefusal) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(round->Snapshot().num_refused, 1);
  for (const uint64_t sequence : {1, 2, 2}) {
    EXPECT_THAT(Put(*round, MakeChunk("", "a", {2}, {1}, sequence, false)), HasCode(Code::kFailedPrecondition));
  }
  EXPECT_EQ(round->Snapshot().num_refused, 1);
}

TEST_F(RoundUploadsTest, Committed_LateChunksWithOtherContent_AreNotTakenForRepeats) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, Tagged("x", {1}, {1}, 0, false)), IsOk());
  ASSERT_THAT(Put(*round, Tagged("x", {2}, {2}, 1)), IsOk());
  ASSERT_THAT(CommitNamed(*round, "a", "a-1", "x"), IsOk());
  EXPECT_THAT(Put(*round, Tagged("x", {2}, {3}, 1)), Fails(Code::kAlreadyExists, HasSubstr("chunk 1 has other")));
  EXPECT_THAT(Put(*round, Tagged("x", {2}, {3}, 2)), Fails(Code::kFailedPrecondition, HasSubstr("marked last")));
  // Chunk 0 may begin the same content in other chunks: the commit compares.
  EXPECT_TRUE(Submit(*round, Tagged("x", {1, 2}, {1, 2}))->duplicate);
  EXPECT_THAT(Submit(*round, Tagged("x", {1, 2}, {1, 3})), Fails(Code::kAlreadyExists, HasSubstr("other content")));
  EXPECT_TRUE(Put(*round, Tagged("x", {2}, {2}, 1))->committed);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1), Pair(2, 2)));
}

TEST_F(RoundUploadsTest, PutChunk_ZeroWithAnotherTag_BeginsAnewAndGivesBackWhatTheOtherHeld) {
  limits_.max_uploads = 1;
  const auto round = Open(SumSpec(1'000'000));
  const uint64_t before = context().budget.reserved();
  const std::vector<uint32_t> keys(100'000, 1);
  ASSERT_THAT(Put(*round, Tagged("old", keys, std::vector<float>(keys.size(), 1), 0, false)), IsOk());
  EXPECT_GE(context().budget.reserved(), before + 800'000);
  ASSERT_THAT(Put(*round, Tagged("new", {1}, {1}, 0, false)), IsOk());
  EXPECT_LE(context().budget.reserved(), before + 10'000 + RecentRefusals::kListBytes);
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  EXPECT_EQ(round->Snapshot().num_refused, 1);

  const auto replaced = Fails(Code::kFailedPrecondition, AllOf(HasSubstr("another upload"), HasSubstr("'a-1'")));
  EXPECT_THAT(Put(*round, Tagged("old", {2}, {2}, 1)), replaced);
  EXPECT_THAT(CommitNamed(*round, "a", "a-1", "old"), replaced);
  const auto nothing = round->intake().GetProgress("a", "a-1", "old");
  ASSERT_THAT(nothing, IsOk());
  EXPECT_EQ(nothing->next_sequence, 0);
  EXPECT_EQ(nothing->received_tuples, 0);
  EXPECT_EQ(round->intake().GetProgress("a", "a-1", "new")->next_sequence, 1);

  ASSERT_THAT(Put(*round, Tagged("new", {2}, {2}, 1)), IsOk());
  ASSERT_THAT(CommitNamed(*round, "a", "a-1", "new"), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1), Pair(2, 2)));
}

TEST_F(RoundUploadsTest, Committed_RepeatsOfItsOwnTag_AreAnsweredWhateverElseIsUnderWay) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, Tagged("x", {1}, {1}, 0, false)), IsOk());
  ASSERT_THAT(Put(*round, Tagged("x", {2}, {2}, 1)), IsOk());
  ASSERT_THAT(CommitNamed(*round, "a", "a-1", "x"), IsOk());
  // The same, in other chunks.
  EXPECT_THAT(round->intake().GetProgress("a", "a-1", "y"), HasCode(Code::kNotFound));
  ASSERT_THAT(Put(*round, Tagged("y", {1}, {1}, 0, false)), IsOk());
  EXPECT_TRUE(CommitNamed(*round, "a", "a-1", "x")->duplicate);
  EXPECT_TRUE(round->intake().GetProgress("a", "a-1", "x")->committed);
  EXPECT_TRUE(Put(*round, Tagged("x", {1}, {1}, 0, false))->committed);
  EXPECT_TRUE(Put(*round, Tagged("x", {2}, {2}, 1))->committed);
  EXPECT_EQ(round->intake().GetProgress("a", "a-1", "y")->next_sequence, 1);
  ASSERT_THAT(Put(*round, Tagged("y", {2}, {2}, 1)), IsOk());
  EXPECT_TRUE(CommitNamed(*round, "a", "a-1", "y")->duplicate);
  EXPECT_TRUE(CommitNamed(*round, "a", "a-1", "y")->duplicate);  // its answer was lost
  // Other content.
  EXPECT_THAT(Submit(*round, Tagged("z", {1}, {1})), Fails(Code::kAlreadyExists, HasSubstr("other content")));
  EXPECT_THAT(CommitNamed(*round, "a", "a-1", "z"), HasCode(Code::kNotFound));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1), Pair(2, 2)));
  EXPECT_TRUE(CommitNamed(*round, "a", "a-1", "x")->duplicate);
  EXPECT_THAT(Submit(*round, Tagged("z", {1}, {1})), HasCode(Code::kAlreadyExists));
}

TEST_F(RoundUploadsTest, Committed_AnotherChunkZero_IsNoRefusalWhenItTimesOut) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  Advance(absl::Seconds(30));
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_EQ(round->Snapshot().num_refused, 0);
}

TEST_F(RoundUploadsTest, Submit_RefusedOnlyWhenPrepared_LeavesNothingInAnyTensor) {
  v1::RoundSpec spec = SumSpec();
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(1)->set_name("w");
  spec.set_max_submissions(10);
  spec.mutable_tensors(1)->mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT);
  spec.mutable_tensors(1)->mutable_aggregation()->set_value_bound(1.0);
  const auto round = Open(spec);
  v1::UpdateChunk chunk = MakeChunk("", "a", {1}, {1});
  *chunk.add_slices() = chunk.slices(0);
  chunk.mutable_slices(1)->set_tensor("w");
  chunk.mutable_slices(1)->set_values(Packed<float>({2.0f}));
  EXPECT_THAT(Submit(*round, chunk), Fails(Code::kInvalidArgument, AllOf(HasSubstr("'w'"), HasSubstr("value_bound"))));
  EXPECT_THAT(Submit(*round, "b", {2}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(2, 1)));
  EXPECT_EQ(round->Snapshot().num_refused, 1);
}

TEST_F(RoundUploadsTest, OpenStreamUpload_UploadLimit_IsRefusedUntilOneIsOver) {
  limits_.max_uploads = 2;
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1})), IsOk());
  ASSERT_THAT(Put(*round, MakeChunk("", "b", {1}, {1})), IsOk());
  EXPECT_THAT(Put(*round, MakeChunk("", "c", {1}, {1})), Fails(Code::kResourceExhausted, HasSubstr("max_uploads 2")));
  ASSERT_THAT(CommitNamed(*round, "a", "a-1"), IsOk());
  EXPECT_THAT(Put(*round, MakeChunk("", "c", {1}, {1})), IsOk());
}

TEST_F(RoundUploadsTest, Submit_ServerLimitOfSubmissions_IsExactAndRetriesStillPass) {
  limits_.max_submissions = 2;
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  ASSERT_THAT(Submit(*round, "b", {1}, {1}), IsOk());
  EXPECT_THAT(Submit(*round, "c", {1}, {1}), Fails(Code::kResourceExhausted, HasSubstr("max_submissions 2")));
  EXPECT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
}

}  // namespace
}  // namespace sparseagg::service
