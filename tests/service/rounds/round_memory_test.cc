// Rounds: --memory-limit, and a call that finds no memory at any of its allocations.
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "service/codec/chunk_codec.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/service/support/threads.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using Code = absl::StatusCode;
using sparseagg::testing::FailingAllocation;
using sparseagg::testing::Try;

class RoundMemoryTest : public RoundFixture {
 protected:
  // 10,000 distinct keys of client `c`, 80,000 bytes.
  static v1::UpdateChunk Large(int c) {
    std::vector<uint32_t> keys(10'000);
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = c * 10'000 + i;
    return MakeChunk("", "c" + std::to_string(c), keys, std::vector<float>(keys.size(), 1.0f));
  }
};

TEST_F(RoundMemoryTest, Submit_DoesNotFit_IsRefusedThereAndTheRoundLives) {
  limits_.memory_limit_bytes = 1'000'000;
  const auto round = Open(SumSpec(1'000'000));
  int accepted = 0;
  absl::StatusOr<Receipt> receipt = Submit(*round, Large(0));
  for (; receipt.ok(); receipt = Submit(*round, Large(accepted))) {
    ++accepted;
    ASSERT_LE(context().budget.reserved(), limits_.memory_limit_bytes);
    ASSERT_LT(accepted, 100);
  }
  EXPECT_THAT(receipt, Fails(Code::kResourceExhausted,
                             AllOf(HasSubstr("1000000 bytes"), HasSubstr("BINNED"), HasSubstr("--memory-limit"))));
  // Each takes 80,000 bytes, and as much of the result.
  EXPECT_GE(accepted, 5);
  EXPECT_LE(accepted, 6);
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  EXPECT_EQ(round->Snapshot().num_refused, 1);
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(ResultOf(*round).size(), accepted * 10'000);
  EXPECT_LE(context().budget.reserved(), limits_.memory_limit_bytes);
}

TEST_F(RoundMemoryTest, Export_RoundOfAClusterKeepsNoRoomForAResultThatItNeverMakes) {
  for (const bool is_merged : {false, true}) {
    v1::RoundSpec spec = SumSpec(1'000'000);
    if (is_merged) spec.mutable_tensors(0)->mutable_aggregation()->set_op(v1::OP_MAX);
    spec.set_stay_open(true);
    spec.mutable_cluster()->add_servers()->set_address("a:1");
    const auto round = Open(spec, is_merged ? "merged" : "kept");
    const uint64_t bytes_of_a_round = context().budget.reserved();
    for (int c = 0; c < 5; ++c) ASSERT_THAT(Submit(*round, Large(c)), IsOk());
    ASSERT_THAT(round->Seal(), IsOk());
    // Keys come sorted. What is merged needs room for the sums beside the submissions, and no more.
    const double needed_bytes = is_merged ? 400'000 + 600'000 : 400'000;
    // Where blocks are tiny their heads are some hundredths of them.
    EXPECT_LT(context().budget.reserved() - bytes_of_a_round, 1.2 * needed_bytes) << "merged on arrival: " << is_merged;
    if (is_merged) {
      EXPECT_THAT(SealedReader(*round).ExportPartial({0, {}, 1 << 20}, ""), IsOk());
    } else {
      EXPECT_THAT(SealedReader(*round).Export({0, {}, 1 << 20}, ""), IsOk());
    }
    // Merged rows have sums of 8 bytes.
    const double kept_bytes = is_merged ? 600'000 : 400'000;
    EXPECT_LT(context().budget.reserved() - bytes_of_a_round, 1.1 * kept_bytes) << "merged on arrival: " << is_merged;
    ASSERT_THAT(round->Cancel("enough"), IsOk());
    RunPendingTasks();
  }
}

TEST_F(RoundMemoryTest, Cancel_FreesAllButTheRoundItself) {
  const auto round = Open(SumSpec(1'000'000));
  const uint64_t bytes_of_a_round = context().budget.reserved();
  for (int c = 0; c < 5; ++c) ASSERT_THAT(Submit(*round, Large(c)), IsOk());
  ASSERT_THAT(round->Cancel("enough"), IsOk());
  RunPendingTasks();
  EXPECT_EQ(context().budget.reserved(), bytes_of_a_round);
}

TEST_F(RoundMemoryTest, Submit_BinnedOnTheSameKeys_HoldsThoseKeysHoweverManyTuplesCome) {
  v1::RoundSpec spec = SumSpec(0);  // hashed keys: num_rows bounds nothing
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
  // A fraction of what the engine lets wait before it merges by itself, and of the 60 MB that all tuples take.
  limits_.memory_limit_bytes = 4'000'000;
  const auto round = Open(spec);
  v1::UpdateChunk chunk = Large(0);
  for (int c = 0; c < 500; ++c) {
    chunk.set_client_id("c" + std::to_string(c));
    ASSERT_THAT(Submit(*round, chunk), IsOk());
    ASSERT_LE(context().budget.reserved(), limits_.memory_limit_bytes);
  }
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(ResultOf(*round)[9'999], 500.0f);
}

TEST_F(RoundMemoryTest, Submit_BinnedBeyondTheLimit_IsNotToldOfBinned) {
  limits_.memory_limit_bytes = 1'000'000;
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
  const auto round = Open(spec);
  absl::StatusOr<Receipt> receipt = Submit(*round, Large(0));
  for (int c = 1; receipt.ok() && c < 100; ++c) receipt = Submit(*round, Large(c));
  EXPECT_THAT(receipt, Fails(Code::kResourceExhausted, AllOf(HasSubstr("--memory-limit"), Not(HasSubstr("BINNED")))));
}

TEST_F(RoundMemoryTest, Submit_DenseResult_ReservesNoSparseOneBeside) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
  const auto round = Open(spec);
  EXPECT_GE(context().budget.reserved(), 4'000'000);
  ASSERT_THAT(Submit(*round, Large(0)), IsOk());
  EXPECT_GE(context().budget.reserved(), 4'000'000 + 80'000);
  EXPECT_LT(context().budget.reserved(), 4'000'000 + 80'000 + 80'000);
}

TEST_F(RoundMemoryTest, Submit_ResultThatMayBecomeDense_ReservesTheSparseOneThatItIsMadeOf) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_AUTO);
  spec.mutable_aggregation()->set_dense_threshold(0.01);
  const auto round = Open(spec);
  EXPECT_LT(context().budget.reserved(), 80'000);
  ASSERT_THAT(Submit(*round, Large(0)), IsOk());
  EXPECT_GE(context().budget.reserved(), 4'000'000 + 80'000 + 80'000);
}

TEST_F(RoundMemoryTest, Submit_Unsorted_ReservesWhatSortingTakes) {
  uint64_t during = 0;
  hooks_.prepare = [&] {
    during = context().budget.reserved();
    return absl::OkStatus();
  };
  const auto round = Open(SumSpec(0));
  const uint64_t before = context().budget.reserved();
  v1::UpdateChunk chunk = Large(0);
  std::vector<uint32_t> keys(10'000, 7);
  chunk.mutable_slices(0)->set_keys(Packed<uint32_t>(keys));
  ASSERT_THAT(Submit(*round, chunk), IsOk());
  // Keys of 8 and values of 4 bytes as they came, pairs of 16 twice, and room for keys and sums of 8.
  EXPECT_GE(during - before, 10'000 * (12 + 2 * 16 + 16));
}

TEST_F(RoundMemoryTest, Ended_OnlyTheResultIsHeld) {
  const auto round = Open(SumSpec(1'000'000));
  for (int c = 0; c < 5; ++c) {
    v1::UpdateChunk chunk = Large(0);
    chunk.set_client_id("c" + std::to_string(c));
    ASSERT_THAT(Submit(*round, chunk), IsOk());
  }
  EXPECT_GE(context().budget.reserved(), 5 * 80'000);
  EXPECT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  RunPendingTasks();
  EXPECT_GE(context().budget.reserved(), 80'000);
  EXPECT_LE(context().budget.reserved(), 2 * 80'000);
}

TEST_F(RoundMemoryTest, Submit_LongIds_CountsEveryCopyThatIsKept) {
  const auto round = Open(SumSpec());
  const auto taken_by = [&](const std::string& id) {
    const uint64_t before = context().budget.reserved();
    v1::UpdateChunk chunk = MakeChunk("", id, {}, {});
    chunk.set_submission_id(id);
    EXPECT_THAT(Submit(*round, chunk), IsOk());
    return context().budget.reserved() - before;
  };
  const uint64_t with_short_ids = taken_by("a");
  EXPECT_EQ(taken_by(std::string(256, 'b')) - with_short_ids, (4 + 2) * 255);
}

TEST_F(RoundMemoryTest, Submit_Unsorted_ReservesTheSort) {
  limits_.memory_limit_bytes = 120'000;
  const auto round = Open(SumSpec(20'000));
  v1::UpdateChunk chunk = Large(0);
  std::vector<uint32_t> keys = Unpacked<uint32_t>(chunk.slices(0).keys());
  std::swap(keys[0], keys[1]);
  chunk.mutable_slices(0)->set_keys(Packed(keys));
  EXPECT_THAT(Submit(*round, chunk), Fails(Code::kResourceExhausted, HasSubstr("sorting")));
}

TEST_F(RoundMemoryTest, Open_DenseResultThatDoesNotFit_IsRefusedWhenTheRoundIsOpened) {
  limits_.memory_limit_bytes = 1'000'000;
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
  EXPECT_THAT(TryOpen(spec), Fails(Code::kResourceExhausted, AllOf(HasSubstr("dense"), HasSubstr("1000000"))));
  EXPECT_EQ(context().budget.reserved(), 0);
  EXPECT_EQ(context().open_rounds.taken(), 0);
  spec.mutable_tensors(0)->set_num_rows(~uint64_t{0});  // num_rows × row_width × size leaves 64 bits
  spec.mutable_tensors(0)->set_row_width(1000);
  EXPECT_THAT(TryOpen(spec), HasCode(Code::kResourceExhausted));
  spec = SumSpec(100'000);
  spec.mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
  EXPECT_THAT(TryOpen(spec), IsOk());
  EXPECT_GE(context().budget.reserved(), 400'000);
}

TEST_F(RoundMemoryTest, Submit_UnionOfAHugeRun_IsRefusedBeforeItIsMerged) {
  limits_.memory_limit_bytes = 1'000'000;
  v1::RoundSpec spec = SumSpec(0);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const auto round = Open(spec);
  v1::UpdateChunk chunk = MakeChunk("", "a", {}, {});
  chunk.mutable_slices(0)->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
  chunk.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_NONE);
  chunk.mutable_slices(0)->set_num_keys(200'000'000);  // takes no bytes on the wire
  EXPECT_THAT(Submit(*round, chunk), HasCode(Code::kResourceExhausted));
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
}

// ---- Rounds whose bookkeeping finds no memory, at every single allocation of a call.

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
