// Rounds that are sealed: submissions are frozen, inspected, and merged later.
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundSealTest : public SubmissionsFixture {};

// A round of a cluster whose ranges are put.
class RoundRangesTest : public RoundSealTest {
 protected:
  std::shared_ptr<Round> OpenSealed(const std::string& id = "r") {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_cluster()->add_servers()->set_address("a:1");
    auto round = Open(spec, id);
    EXPECT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }
  static absl::Status Put(Round& round, const RangeRecord& range, std::string page = "rows") {
    return round.PutRange(round.create_time(), range, std::move(page));
  }
  static absl::Status PutList(Round& round, const std::string& only = "", const std::string& plan = "p") {
    return Put(round, {only, plan, ""}, "list");
  }
  static std::string PageOf(const Round& round, const std::string& tensor, uint64_t begin) {
    const auto page = round.ranges().Find(tensor, begin);
    return page.ok() ? **page : page.status().ToString();
  }
};

TEST_F(RoundRangesTest, PutRange_BadInput_ChangesNothing) {
  const auto round = OpenSealed();
  ASSERT_THAT(Put(*round, {"", "p", "w", 10, 20}), IsOk());
  const uint64_t reserved = round->budget().reserved();
  EXPECT_THAT(round->PutRange(round->create_time() - absl::Seconds(1), {"", "p", "w", 0, 10}, "rows"),
              Fails(Code::kFailedPrecondition, HasSubstr("was created at")));
  for (const auto& [begin, end] : {std::pair(0, 11), std::pair(19, 0), std::pair(12, 13), std::pair(0, 0)}) {
    EXPECT_THAT(Put(*round, {"", "p", "w", static_cast<uint64_t>(begin), static_cast<uint64_t>(end)}),
                Fails(Code::kInvalidArgument, HasSubstr("overlaps the range [10, 20) of tensor 'w'")));
  }
  EXPECT_THAT(Put(*round, {"", "p", "w", 10, 20}, "other"), Fails(Code::kAlreadyExists, HasSubstr("other rows")));
  EXPECT_EQ(round->budget().reserved(), reserved);
  ASSERT_THAT(PutList(*round), IsOk());
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("without the range")));
  EXPECT_THAT(Put(*round, {"", "q", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("into other ranges")));
  EXPECT_THAT(PutList(*round, "some"), Fails(Code::kFailedPrecondition, HasSubstr("of other clients")));
  EXPECT_EQ(round->budget().reserved(), reserved + ResultRanges::MemoryBytes({"", "p", ""}, "list"));

  const auto alone = Open(SumSpec(), "alone");
  ASSERT_THAT(alone->Seal(), IsOk());
  EXPECT_THAT(Put(*alone, {"", "p", "w", 0, 10}),
              Fails(Code::kFailedPrecondition, HasSubstr("only a round of a cluster")));
  const auto cancelled = OpenSealed("cancelled");
  ASSERT_THAT(Put(*cancelled, {"", "p", "w", 10, 20}), IsOk());
  ASSERT_THAT(cancelled->Cancel("stop"), IsOk());
  EXPECT_THAT(Put(*cancelled, {"", "p", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("is CANCELLED")));
  EXPECT_THAT(cancelled->ranges().Find("w", 10), HasCode(Code::kNotFound));
}

TEST_F(RoundRangesTest, PutRange_EndWithoutAList_LeavesTheRoundToALaterOne) {
  const auto round = OpenSealed();
  ASSERT_THAT(Put(*round, {}, ""), IsOk());
  EXPECT_EQ(round->state(), RoundState::kDone);
  EXPECT_THAT(round->ranges().Find("", 0), HasCode(Code::kNotFound));
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 0}), IsOk());
  EXPECT_THAT(PutList(*round), IsOk());
  EXPECT_EQ(PageOf(*round, "w", 0), "rows");
}

// A commit that adds its submission counts, and the seal waits for it. One that comes later is refused.
TEST_F(RoundSealTest, Seal_WaitsForACommitThatAdds) {
  num_threads_ = 4;
  Hold adding;
  hooks_.add = adding.Hook();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {7}, {1})), IsOk());
  Event answered;
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  context().pool.Post([&] {
    round->intake().CommitNamed("a", "a-1", "", [&](absl::StatusOr<Receipt> answer) {
      receipt = std::move(answer);
      answered.Notify();
    });
  });
  adding.Wait();
  Event sealed;
  context().pool.Post([&] {
    EXPECT_THAT(round->Seal(), IsOk());
    sealed.Notify();
  });
  EXPECT_EQ(round->state(), RoundState::kOpen);
  adding.Release();
  sealed.Wait();
  answered.Wait();
  EXPECT_THAT(receipt, IsOk());
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a"));
}

// Whoever has a receipt when the round is sealed counts, and nobody else.
TEST_F(RoundSealTest, Seal_AmidSubmissions_CountsTheReceipts) {
  num_threads_ = 4;
  for (int i = 0; i < 20; ++i) {
    const auto round = Open(SumSpec(), std::to_string(i));
    std::atomic<int> receipts = 0;
    uint64_t frozen = 0;
    OnThreads(5, [&](int thread) {
      if (thread == 0) {
        EXPECT_THAT(round->Seal(), IsOk());
        frozen = round->Snapshot().num_submissions;
        return;
      }
      for (int k = 0; k < 20; ++k) {
        if (Submit(*round, absl::StrCat(thread, "-", k), {7}, {1}).ok()) ++receipts;
      }
    });
    EXPECT_EQ(frozen, receipts);
    EXPECT_EQ(ClientsOf(*round).size(), frozen);
    EXPECT_THAT(round->Close(), IsOk());
    AwaitEnd(*round);
  }
}

// ---- SealedReader: inner products.

constexpr uint64_t kPage = uint64_t{1} << 20;
constexpr auto kNeverCancelled = [] { return false; };

class SealedInspectTest : public SubmissionsFixture {
 protected:
  std::shared_ptr<Round> Sealed(const v1::RoundSpec& spec = SumSpec()) {
    auto round = Open(spec);
    EXPECT_THAT(Submit(*round, "b", {7, 9}, {1, 2}), IsOk());
    EXPECT_THAT(Submit(*round, "a", {9, 7, 9}, {1, 10, 3}), IsOk());
    EXPECT_THAT(Submit(*round, "c", {3}, {5}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }
};

TEST_F(SealedInspectTest, Inspect_EndsWithTheCaller) {
  const auto round = Sealed();
  int num_rows = 0;
  const auto after_one = [&] { return ++num_rows == 2; };
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", after_one), Fails(Code::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(num_rows, 2);
}

TEST_F(SealedInspectTest, Inspect_Pages_ContinueAtTheToken) {
  const auto round = Sealed();
  std::string token;
  std::vector<double> gram;
  int pages = 0;
  do {
    const auto page = SealedReader(*round).Inspect({}, 1, token, kNeverCancelled);
    ASSERT_THAT(page, IsOk());
    EXPECT_EQ(page->first_row, pages);
    EXPECT_EQ(page->client_ids.size(), 1) << "at least one row, whatever the limit";
    gram.insert(gram.end(), page->gram.begin(), page->gram.end());
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(gram, ElementsAre(116, 18, 5, 0, 0, 25));
  const std::string created = absl::StrCat(absl::ToUnixNanos(round->create_time()));
  for (const std::string& bad : {std::string("17.1"), created, created + ".4", created + ".x.3", created + ".4.3"}) {
    EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, bad, kNeverCancelled),
                Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << bad;
  }
}

TEST_F(SealedInspectTest, Inspect_MergedOnArrival_IsRefusedByName) {
  const auto round = OpenMerged();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNeverCancelled),
              Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v': its submissions have been merged")));
}

TEST_F(SealedInspectTest, Inspect_TooManySubmissions_AreRefused) {
  const auto round = Open(SumSpec());
  for (uint64_t i = 0; i <= SealedReader::kMaxInspected; ++i) {
    if (i == SealedReader::kMaxInspected) {
      // Exactly at the limit.
      const auto twin = Open(SumSpec(), "twin");
      for (uint64_t k = 0; k < SealedReader::kMaxInspected; ++k) {
        ASSERT_THAT(Submit(*twin, absl::StrCat(k), {}, {}), IsOk());
      }
      ASSERT_THAT(twin->Seal(), IsOk());
      EXPECT_THAT(SealedReader(*twin).Inspect({}, 1, "", kNeverCancelled), IsOk());
    }
    ASSERT_THAT(Submit(*round, absl::StrCat(i), {}, {}), IsOk());
  }
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNeverCancelled),
              Fails(Code::kInvalidArgument, HasSubstr("4097 submissions; a round of at most 4096")));
}

TEST_F(SealedInspectTest, Inspect_ReservesItsMemory) {
  const auto round = Sealed();
  const uint64_t before = context().budget.reserved();
  {
    const auto page = SealedReader(*round).Inspect({}, kPage, "", kNeverCancelled);
    ASSERT_THAT(page, IsOk());
    EXPECT_GE(context().budget.reserved(), before + page->MemoryBytes());
  }
  EXPECT_EQ(context().budget.reserved(), before);
}

TEST_F(SealedInspectTest, Inspect_WithoutMemory_IsRefusedAndNothingIsLost) {
  limits_.memory_limit_bytes = 1'000'000;
  const auto round = Sealed();
  const uint64_t before = context().budget.reserved();
  EXPECT_THAT(SealedReader(*round).Inspect({}, uint64_t{1} << 30, "", kNeverCancelled),
              Fails(Code::kResourceExhausted, HasSubstr("inspection")));
  EXPECT_EQ(context().budget.reserved(), before);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(3, 5), Pair(7, 11), Pair(9, 6)));
}

}  // namespace
}  // namespace sparseagg::service
