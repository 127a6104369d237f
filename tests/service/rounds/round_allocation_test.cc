// Rounds whose bookkeeping finds no memory, at every single allocation of a call.
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "service/codec/chunk_codec.h"
#include "tests/service/support/busy_thread.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::service {
namespace {

using sparseagg::testing::FailingAllocation;
using sparseagg::testing::Try;
using ::testing::ElementsAre;
using ::testing::Pair;

// Too long to be stored inside a std::string: every copy allocates.
const std::string kLongName(64, 'a');

class RoundAllocationTest : public SubmissionsFixture {
 protected:
  RoundAllocationTest() { num_threads_ = 1; }

  // Calls `attempt(n)`, whose n-th allocation fails, for n = 0, 1, … until nothing fails.
  static void ForEachFailure(const std::function<bool(int n)>& attempt) {
    int n = 0;
    while (attempt(n)) ASSERT_LT(++n, 1000);
    EXPECT_GT(n, 0);
  }
  // A round with a waiter, an upload of each kind, and a committed submission.
  std::shared_ptr<Round> OpenBusyRound(int n) {
    num_discarded_ = 0;
    num_answered_ = 0;
    v1::RoundSpec spec = SumSpec();
    const auto round = Open(spec, "r" + std::to_string(n));
    EXPECT_THAT(Submit(*round, "committed", {1}, {1}), IsOk());
    EXPECT_THAT(round->intake().OpenStreamUpload(kLongName, kLongName, [this](absl::Status) { ++num_discarded_; }),
                IsOk());
    EXPECT_THAT(Put(*round, MakeChunk("", "b" + kLongName, {1}, {1}, 0, false)), IsOk());
    round->Wait(absl::InfiniteDuration(), [this] { ++num_answered_; });
    RunPendingTasks();
    return round;
  }

  std::atomic<int> num_discarded_ = 0;
  std::atomic<int> num_answered_ = 0;
};

TEST_F(RoundAllocationTest, PutChunk_FirstChunkFails_KeepsNoUpload) {
  const auto round = Open(SumSpec());
  RunPendingTasks();
  const v1::UpdateChunk wire = MakeChunk("", kLongName, {1}, {1}, 0, false);
  const absl::StatusOr<Chunk> chunk = DecodeChunk(wire);
  ASSERT_THAT(chunk, IsOk());
  ForEachFailure([&](int n) {
    absl::Status status;
    bool failed = false;
    {
      FailingAllocation failing(n);
      status = Try([&] { return round->intake().PutChunk(kLongName, kLongName, *chunk).status(); });
      failed = failing.failed();
    }
    // Some allocations only make an upload faster.
    EXPECT_EQ(round->Snapshot().num_uploads, status.ok() ? 1 : 0) << n;
    EXPECT_EQ(context().uploads.taken(), status.ok() ? 1 : 0) << n;
    if (status.ok()) round->intake().RefuseNamed(kLongName, kLongName, "", absl::CancelledError());
    return failed;
  });
}

TEST_F(RoundAllocationTest, Cancel_Fails_ChangesNothingOrTellsEverybody) {
  ForEachFailure([&](int n) {
    const auto round = OpenBusyRound(n);
    bool failed = false;
    {
      const BusyThread busy(context().pool);  // so that only this thread allocates
      FailingAllocation failing(n);
      (void)Try([&] { return round->Cancel(kLongName); });
      failed = failing.failed();
    }
    if (round->state() == RoundState::kOpen) {
      EXPECT_THAT(CommitNamed(*round, "committed", "committed-1"), IsOk()) << n;
      EXPECT_EQ(round->Snapshot().num_uploads, 2) << n;
      EXPECT_THAT(round->Cancel("again"), IsOk());
    }
    RunPendingTasks();
    EXPECT_EQ(round->state(), RoundState::kCancelled);
    EXPECT_EQ(num_answered_, 1) << n;
    EXPECT_EQ(num_discarded_, 1) << n;
    EXPECT_EQ(round->Snapshot().num_uploads, 0) << n;
    EXPECT_EQ(context().uploads.taken(), 0) << n;
    EXPECT_EQ(context().open_rounds.taken(), 0) << n;
    return failed;
  });
}

TEST_F(RoundAllocationTest, Close_Fails_ChangesNothingOrGoesOnToTheEnd) {
  ForEachFailure([&](int n) {
    const auto round = OpenBusyRound(n);
    bool failed = false;
    {
      const BusyThread busy(context().pool);  // so that only this thread allocates
      FailingAllocation failing(n);
      (void)Try([&] {
        round->Close().IgnoreError();
        return absl::OkStatus();
      });
      failed = failing.failed();
    }
    if (round->state() == RoundState::kOpen) {
      EXPECT_EQ(round->Snapshot().num_uploads, 2) << n;
      round->Close().IgnoreError();
    }
    RunPendingTasks();
    EXPECT_EQ(round->state(), RoundState::kDone) << n;
    EXPECT_EQ(num_answered_, 1) << n;
    EXPECT_EQ(num_discarded_, 1) << n;
    EXPECT_EQ(context().uploads.taken(), 0) << n;
    return failed;
  });
}

TEST_F(RoundAllocationTest, WhoCounts_ChangeFails_ChangesNothingOrAllOfIt) {
  const std::string other = "b" + kLongName;
  const std::vector<std::string> only = {kLongName};
  const std::vector<Round::ClientWeight> weights = {{kLongName, 1}, {other, 0}};
  const std::pair<std::string, std::function<absl::Status(Round&)>> changes[] = {
      {"withdraw", [&](Round& round) { return round.Withdraw(other, "").status(); }},
      {"close", [&](Round& round) { return round.CloseWithOnly(only); }},
      {"seal", [](Round& round) { return round.Seal(); }},
      {"weights", [&](Round& round) { return round.CloseWithWeights(weights); }}};
  for (const auto& entry : changes) {
    const std::string name = entry.first;
    SCOPED_TRACE(name);
    ForEachFailure([&](int n) {
      const auto round = Open(SumSpec(), absl::StrCat(name, n));
      for (const std::string& client : {kLongName, other}) EXPECT_THAT(Submit(*round, client, {7}, {1}), IsOk());
      EXPECT_THAT(Put(*round, MakeChunk("", "late", {7}, {1})), IsOk());
      if (name == "weights") {
        EXPECT_THAT(round->Seal(), IsOk());
      }
      RunPendingTasks();
      const RoundState before = round->state();
      absl::Status status;
      bool failed = false;
      {
        const BusyThread busy(context().pool);  // so that only this thread allocates
        FailingAllocation failing(n);
        status = Try([&] { return entry.second(*round); });
        failed = failing.failed();
      }
      const uint64_t num_counted = status.ok() && name != "seal" ? 1 : 2;
      const bool is_open = round->state() == RoundState::kOpen;
      EXPECT_EQ(round->state() == before, !status.ok() || name == "withdraw") << n;
      EXPECT_EQ(round->Snapshot().num_uploads, is_open ? 1 : 0) << n;
      EXPECT_EQ(round->Snapshot().num_submissions, num_counted) << n;
      EXPECT_EQ(ClientsOf(*round).size(), num_counted) << n;
      EXPECT_THAT(round->Close(), IsOk());
      EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, num_counted))) << n;
      return failed;
    });
  }
}

}  // namespace
}  // namespace sparseagg::service
