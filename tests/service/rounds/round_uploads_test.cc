// Rounds: what happens to uploads and commits, repeated and in the wrong order.
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/intake.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round_life.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
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
  spec.mutable_tensors(1)->set_dtype(v1::DTYPE_INT64);
  const auto round = Open(spec);
  v1::UpdateChunk chunk = MakeChunk("", "a", {1, 1}, {1, 1});
  *chunk.add_slices() = chunk.slices(0);
  v1::TensorSlice& integers = *chunk.mutable_slices(1);
  integers.set_tensor("w");
  integers.set_value_encoding(v1::VALUE_ENCODING_INT64);
  integers.set_values(Packed<int64_t>({std::numeric_limits<int64_t>::max(), 1}));
  EXPECT_THAT(Submit(*round, chunk), Fails(Code::kOutOfRange, AllOf(HasSubstr("'w'"), HasSubstr("leaves int64"))));
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

// ---- An intake by itself, with a target that closes at odd times.

// Takes what comes while it is open.
class Target : public SubmissionTarget, public std::enable_shared_from_this<Target> {
 public:
  Target(ServerContext& context, RoundConfig config)
      : config_(std::make_shared<const RoundConfig>(std::move(config))),
        tenant_(context.tenants.Of(config_->tenant)),
        meter_(*config_, tenant_, context.metrics, /*is_restored=*/false),
        intake(*this, config_, context.ForRounds(), tenant_, std::make_shared<RoundJournal>(nullptr), meter_) {}

  RoundState state() const override { return is_open ? RoundState::kOpen : RoundState::kSealed; }
  absl::Status CheckOpen() const override {
    return is_open ? absl::OkStatus() : absl::FailedPreconditionError("the target is closed");
  }
  absl::Status CheckTakes(absl::string_view /*client_id*/) const override {
    absl::Status open = CheckOpen();
    if (after_check != nullptr) std::exchange(after_check, nullptr)();
    return open;
  }
  std::optional<CommittedSubmission> FindCommitted(UploadName name, const std::string* /*tag*/) const override {
    const auto found = committed.find(std::string(name.first));
    return found == committed.end() ? std::nullopt : std::optional(found->second);
  }
  bool HasSubmission(absl::string_view client_id, absl::string_view /*submission_id*/) const override {
    return committed.contains(std::string(client_id));
  }
  absl::StatusOr<Receipt> Commit(CompleteUpload& upload) override {
    RETURN_IF_ERROR(CheckOpen());
    Receipt receipt{upload.client_id, upload.submission_id};
    CommittedSubmission& submission = committed[upload.client_id];
    submission.hash = upload.hash;
    submission.receipt = receipt;
    return receipt;
  }
  absl::StatusOr<bool> Withdraw(absl::string_view, absl::string_view, bool) override { return false; }
  std::shared_ptr<const void> Keep() const override { return shared_from_this(); }

  void Close() {
    is_open = false;
    intake.PrepareToClose();
    intake.Close(absl::FailedPreconditionError("the target has closed"), [](const std::string&) { return false; });
  }

 private:
  const std::shared_ptr<const RoundConfig> config_;
  Tenant& tenant_;
  RoundMeter meter_;

 public:
  bool is_open = true;
  mutable std::function<void()> after_check;  // once
  std::map<std::string, CommittedSubmission> committed;
  Intake intake;
};

class IntakeTest : public RoundFixture {
 protected:
  std::shared_ptr<Target> OpenTarget() {
    RoundConfig config = *DecodeRoundSpec(SumSpec(), limits_);
    config.id = "t";
    return std::make_shared<Target>(context(), std::move(config));
  }
  static Chunk Empty(uint64_t sequence = 0, bool last = true) {
    Chunk chunk;
    chunk.sequence = sequence;
    chunk.last = last;
    return chunk;
  }
};

TEST_F(IntakeTest, Open_WhileTheTargetCloses_IsRefused) {
  const auto target = OpenTarget();
  target->after_check = [&] { target->Close(); };
  EXPECT_THAT(target->intake.OpenStreamUpload("a", "a-1", nullptr),
              Fails(Code::kFailedPrecondition, HasSubstr("the target is closed")));
  target->is_open = true;
  target->after_check = [&] { target->Close(); };
  EXPECT_THAT(target->intake.PutChunk("a", "a-1", Empty(0, false)), HasCode(Code::kFailedPrecondition));
  const IntakeSnapshot snapshot = target->intake.Snapshot();
  EXPECT_EQ(snapshot.num_uploads, 0);
  EXPECT_EQ(snapshot.num_refused, 2);
  EXPECT_THAT(snapshot.recent_refusals, SizeIs(2));
  EXPECT_EQ(context().uploads.taken(), 0);
}

TEST_F(IntakeTest, PutChunk_WhileAnotherCallOpensTheUpload_GoesToThat) {
  const auto target = OpenTarget();
  target->after_check = [&] { EXPECT_THAT(target->intake.PutChunk("a", "a-1", Empty(0, false)), IsOk()); };
  const auto progress = target->intake.PutChunk("a", "a-1", Empty(0, false));
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->next_sequence, 1);
  EXPECT_EQ(target->intake.Snapshot().num_uploads, 1);
  // One with another tag takes the name from it.
  target->after_check = [&] { EXPECT_THAT(target->intake.PutChunk("b", "b-1", Empty(0, false), "x"), IsOk()); };
  EXPECT_THAT(target->intake.PutChunk("b", "b-1", Empty(0, false), "y"), IsOk());
  EXPECT_EQ(target->intake.Snapshot().num_uploads, 2);
  EXPECT_EQ(target->intake.GetProgress("b", "b-1", "x")->next_sequence, 0);
  EXPECT_EQ(target->intake.GetProgress("b", "b-1", "y")->next_sequence, 1);
}

TEST_F(IntakeTest, Submit_OfAWholeSubmission_NeedsNoUpload) {
  const auto target = OpenTarget();
  EXPECT_THAT(target->intake.Submit("a", "a-1", Empty()), IsOk());
  target->is_open = false;
  EXPECT_THAT(target->intake.Submit("b", "b-1", Empty()), HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(target->intake.Snapshot().num_uploads, 0);
  EXPECT_EQ(target->intake.Snapshot().num_refused, 1);
  EXPECT_EQ(context().budget.reserved(), RecentRefusals::kListBytes);
}

// ---- Parts of a round by themselves: the times of its life, the refusals that it tells, and tokens of pages of its
// result.

Moment At(int seconds) { return {absl::UnixEpoch() + absl::Seconds(seconds), absl::Seconds(seconds)}; }

TEST(RoundTimesTest, End_TimeOfDaySetBack_NotBeforeTheClose) {
  RoundLife life(At(1).wall, At(1).monotonic);
  life.Close(At(5));
  const Moment now = {At(2).wall, At(6).monotonic};
  const absl::Duration time_to_expiry = life.TimeToExpiry(absl::Seconds(10), now);
  life.End(RoundState::kFailed, absl::InternalError("no"), "no", time_to_expiry, now);
  EXPECT_EQ(life.Record().end_time, At(5).wall);
  EXPECT_EQ(life.Record().name, StateRecord::Name::kFailed);
}

class RecentRefusalsTest : public RoundFixture {
 protected:
  const absl::Time now_ = clock_.WallTime();
  MemoryBudget budget_{1 << 20};
  RecentRefusals refusals_{&budget_};
};

TEST_F(RecentRefusalsTest, Add_MoreThanTheList_KeepsTheLatest) {
  for (int i = 0; i < 50; ++i) {
    refusals_.Add(absl::StrCat("client", i), absl::InvalidArgumentError("bad"), now_ + absl::Seconds(i));
  }
  ASSERT_THAT(refusals_.list(), SizeIs(RecentRefusals::kMaxRefusals));
  EXPECT_EQ(refusals_.list().front().client_id, "client30");
  EXPECT_EQ(refusals_.list().back().client_id, "client49");
  EXPECT_EQ(refusals_.list().back().time, now_ + absl::Seconds(49));
  EXPECT_EQ(budget_.reserved(), RecentRefusals::kListBytes);
}

TEST_F(RecentRefusalsTest, Add_LongReason_IsCutBetweenCharacters) {
  refusals_.Add("a", absl::InvalidArgumentError(absl::StrCat("x", std::string(400, 'y'))), now_);
  EXPECT_EQ(refusals_.list().back().reason.size(), RecentRefusals::kMaxReasonBytes);
  std::string umlauts = "x";
  for (int i = 0; i < 300; ++i) umlauts += "\u00e4";
  refusals_.Add("a", absl::InvalidArgumentError(umlauts), now_);
  EXPECT_EQ(refusals_.list().back().reason, umlauts.substr(0, RecentRefusals::kMaxReasonBytes - 1));
}

TEST_F(RecentRefusalsTest, Add_WithoutMemory_KeepsNothing) {
  MemoryBudget small(100);
  RecentRefusals refusals(&small);
  refusals.Add("a", absl::InvalidArgumentError("bad"), now_);
  EXPECT_THAT(refusals.list(), IsEmpty());
}

constexpr absl::Time kCreated = absl::FromUnixSeconds(1);

TEST(ResultPagesTest, ResumeAt_ForeignToken_IsRefused) {
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated, 2, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 9), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 21), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated + absl::Nanoseconds(1), 3, {10, 20}),
              HasCode(Code::kInvalidArgument));
  for (const char* token : {"", "3", "3.17", "1000000000.3", "1000000000.3.", "1000000000..17", ".3.17",
                            "1000000000.3.17.1", "1000000000.-3.17", "x", "1000000000.3.99999999999999999999"}) {
    EXPECT_THAT(ResumeAt(token, kCreated, 3, {10, 20}), Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << token;
  }
}

}  // namespace
}  // namespace sparseagg::service
