// An intake by itself, with a target that closes at odd times.
#include "service/rounds/intake.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "host/base/status_macros.h"
#include "service/codec/spec_codec.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = absl::StatusCode;

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

}  // namespace
}  // namespace sparseagg::service
