// Rounds: the state machine, with time moved by hand; the registry, and the home servers of a cluster.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/base/refusals.h"
#include "service/codec/cluster_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/registry.h"
#include "service/rounds/round_config.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundLifeTest : public RoundFixture {
 protected:
  // Holds Finish up until `go_`.
  void HoldFinish() {
    hooks_.finish = [this] {
      finishing_.Notify();
      go_.Wait();
      return absl::OkStatus();
    };
  }
  static v1::RoundSpec SpecWithDeadline(int64_t seconds) {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_deadline()->set_seconds(seconds);
    return spec;
  }

  Event finishing_;
  Event go_;
};

TEST_F(RoundLifeTest, Close_WhileFinishing_IsVisibleAndChangesNothing) {
  HoldFinish();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing_.Wait();
  EXPECT_EQ(round->Snapshot().state, RoundState::kFinalizing);
  EXPECT_THAT(round->GetResults(), Fails(Code::kFailedPrecondition, HasSubstr("FINALIZING")));
  EXPECT_THAT(Put(*round, MakeChunk("", "b", {1}, {1})), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(round->Close(), IsOk());
  go_.Notify();
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(round->Snapshot().state, RoundState::kDone);
}

// Who opens a round may take a while to make it known.
TEST_F(RoundLifeTest, Deadline_PassedBeforeItIsStarted_ClosesTheRoundOnlyThen) {
  auto config = DecodeRoundSpec(SpecWithDeadline(10), limits_);
  ASSERT_THAT(config, IsOk());
  const auto round = Round::Open(*std::move(config), context().ForRounds(), nullptr);
  ASSERT_THAT(round, IsOk());
  Advance(absl::Seconds(20));
  RunPendingTasks();
  EXPECT_EQ((*round)->state(), RoundState::kOpen);
  (*round)->StartDeadline();
  EXPECT_EQ(AwaitEnd(**round).state, RoundState::kDone);
}

TEST_F(RoundLifeTest, Add_Fails_TheRoundFailsRatherThanGiveAWrongSum) {
  int adds = 0;
  hooks_.add = [&] { return ++adds == 2 ? absl::InternalError("broken") : absl::OkStatus(); };
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(Submit(*round, "b", {1}, {1}), Fails(Code::kInternal, HasSubstr("broken")));
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kFailed);
  EXPECT_THAT(snapshot.reason, HasSubstr("broken"));
}

TEST_F(RoundLifeTest, Prepare_ThrowsBadAlloc_RefusesTheSubmissionOnly) {
  int prepares = 0;
  hooks_.prepare = [&]() -> absl::Status {
    if (++prepares == 1) throw std::bad_alloc();
    return absl::OkStatus();
  };
  const auto round = Open(SumSpec());
  EXPECT_THAT(Submit(*round, "a", {1}, {1}), HasCode(Code::kResourceExhausted));
  EXPECT_THAT(Submit(*round, "b", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
}

TEST_F(RoundLifeTest, Cancel_WhileFinishing_DropsTheResult) {
  HoldFinish();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing_.Wait();
  EXPECT_THAT(round->Cancel("late"), IsOk());
  EXPECT_EQ(AwaitEnd(*round).state, RoundState::kCancelled);
  go_.Notify();
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().state, RoundState::kCancelled);
  EXPECT_THAT(round->GetResults(), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundLifeTest, Close_WithAnUploadOpen_DiscardsItAndTellsItsOwner) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Event told;
  absl::Status verdict;
  const auto upload = round->intake().OpenStreamUpload("b", "b-1", [&](absl::Status status) {
    verdict = status;
    told.Notify();
  });
  ASSERT_THAT(upload, IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 2);
  EXPECT_THAT(round->Close(), IsOk());
  told.Wait();
  EXPECT_THAT(verdict, HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_EQ(round->Snapshot().num_refused, 2);
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 1, true)), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(round->intake().Commit(**upload), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(ResultOf(*round), IsEmpty());
}

TEST_F(RoundLifeTest, UploadTimeout_NoChunkForThatLong_DiscardsTheUpload) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Advance(absl::Seconds(20));
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {2}, {1}, 1, false)), IsOk());  // starts the time anew
  Advance(absl::Seconds(20));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), IsOk());
  Advance(absl::Seconds(10));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), HasCode(Code::kNotFound));
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_EQ(round->Snapshot().num_refused, 1);
  EXPECT_EQ(context().uploads.taken(), 0);
}

TEST_F(RoundLifeTest, UploadTimeout_OnlyRepeatsAndGaps_DoNotKeepTheUpload) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Advance(absl::Seconds(20));
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 7, false)), HasCode(Code::kFailedPrecondition));
  Advance(absl::Seconds(10));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), HasCode(Code::kNotFound));
}

TEST_F(RoundLifeTest, UploadTimeout_OfAnUploadWhoseCallerHoldsIt_IsTheCallersToWatch) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  const auto upload = round->intake().OpenStreamUpload("a", "a-1", nullptr);
  ASSERT_THAT(upload, IsOk());
  Advance(absl::Seconds(100));
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
}

TEST_F(RoundLifeTest, ResultTtl_Passed_ForgetsTheRoundAndItsMemory) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_result_ttl()->set_seconds(60);
  {
    const auto round = Open(spec);
    ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
    EXPECT_THAT(round->Close(), IsOk());
    const RoundSnapshot snapshot = AwaitEnd(*round);
    EXPECT_EQ(snapshot.expire_time - snapshot.end_time, absl::Seconds(60));
  }
  Advance(absl::Seconds(59));
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), IsOk());
  Advance(absl::Seconds(1));
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), HasCode(Code::kNotFound));
  EXPECT_EQ(context().budget.reserved(), 0);
}

class RegistryTest : public RoundFixture {
 protected:
  std::vector<std::string> IdsOf(const Registry::Page& page) {
    std::vector<std::string> ids;
    for (const Registry::Entry& entry : page.entries) ids.push_back(entry.round->config().id);
    return ids;
  }
};

TEST_F(RegistryTest, List_Pages_GoThroughAllInOrderOfCreation) {
  for (const char* id : {"e", "a", "d", "b", "c"}) Open(SumSpec(), id);
  auto page = registry().List(kDefaultTenant, 2, "");
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(IdsOf(*page), ElementsAre("e", "a"));
  ASSERT_THAT(registry().Delete(kDefaultTenant, "d"), IsOk());  // where the next page would begin
  page = registry().List(kDefaultTenant, 2, page->next_page_token);
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(IdsOf(*page), ElementsAre("b", "c"));
  EXPECT_EQ(page->next_page_token, "");
}

TEST_F(RegistryTest, List_ForeignToken_IsRefused) {
  EXPECT_THAT(registry().List(kDefaultTenant, 2, "x"), Fails(Code::kInvalidArgument, HasSubstr("page_token")));
}

TEST_F(RegistryTest, Create_AfterAnExpiredOneOfTheSameId_IsNotExpiredWithIt) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_result_ttl()->set_seconds(10);
  const auto first = Open(spec, "a");
  EXPECT_THAT(first->Close(), IsOk());
  AwaitEnd(*first);
  ASSERT_THAT(registry().Delete(kDefaultTenant, "a"), IsOk());
  const auto second = Open(spec, "a");
  Advance(absl::Seconds(10));
  RunPendingTasks();
  EXPECT_EQ(*registry().Find(kDefaultTenant, "a"), second);
}

TEST(HomeServersTest, HomesAreSharedEvenlyAndStayWhenAServerIsAdded) {
  constexpr int kClients = 4000;
  std::array<int, 4> shares = {};
  for (int i = 0; i < kClients; ++i) {
    const std::string client = absl::StrCat("client-", i);
    const size_t before = HomeOf(client, 4);
    const size_t after = HomeOf(client, 5);
    EXPECT_TRUE(after == before || after == 4) << client;
    ++shares[before];
  }
  for (const int share : shares) EXPECT_GT(share, kClients / 4 * 9 / 10);
}

// The same numbers as in tests/python/cluster/test_cluster.py and js/sparseagg.test.js.
TEST(HomeServersTest, AgreesWithOtherLanguages) {
  EXPECT_EQ(HomeOf("", 4), 1);
  EXPECT_EQ(HomeOf("a", 4), 3);
  EXPECT_EQ(HomeOf("client-7", 4), 0);
  EXPECT_EQ(HomeOf("\xC3\xBC", 4), 1);
}

TEST(HomeServersTest, OtherServersNameTheHome) {
  HomeServers homes{{{"a:1", "http://a:2"}, {"b:1", ""}, {"c:1", ""}, {"d:1", "https://d:2"}}, 0};
  EXPECT_TRUE(homes.CheckHome("client-7").ok());
  EXPECT_TRUE(HomeServers().CheckHome("a").ok());
  const absl::Status with_url = homes.CheckHome("a");
  EXPECT_EQ(with_url.code(), absl::StatusCode::kFailedPrecondition);
  using Metadata = std::map<std::string, std::string>;
  EXPECT_EQ(InfoOf(with_url).reason, "HOME_ELSEWHERE");
  EXPECT_EQ(InfoOf(with_url).metadata, (Metadata{{"address", "d:1"}, {"http_url", "https://d:2"}}));
  EXPECT_EQ(HomeUrl(with_url), "https://d:2");
  EXPECT_EQ(InfoOf(homes.CheckHome("\xC3\xBC")).metadata, (Metadata{{"address", "b:1"}}));
  EXPECT_EQ(HomeUrl(homes.CheckHome("\xC3\xBC")), "");
  EXPECT_EQ(InfoOf(absl::FailedPreconditionError("the round is DONE")).reason, "");
}

v1::ClusterSpec ClusterOf(const std::vector<std::pair<std::string, std::string>>& servers, uint32_t index = 0) {
  v1::ClusterSpec spec;
  for (const auto& [address, url] : servers) {
    spec.add_servers()->set_address(address);
    spec.mutable_servers()->rbegin()->set_http_url(url);
  }
  spec.set_index(index);
  return spec;
}

TEST(ClusterCodecTest, RefusesWhatIsNoAddress) {
  for (const char* address : {"", "a", "a:", ":1", "a:0", "a:65536", "a:1/x", "u@a:1", "a b:1", "a:1\r\nX: y", "a:+1",
                              "[a:1", "::1:1", "unix:/tmp/x", "a%0d:1", "\xC3\xBC:1"}) {
    EXPECT_EQ(DecodeCluster(ClusterOf({{address, ""}})).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  for (const char* url : {"a:1", "ftp://a:1", "javascript://a:1", "http://a", "http://a:1/", "http://a:1?q",
                          "http://a:1#f", "http://u:p@a:1", "http://a:1\r\nSet-Cookie: x", "//a:1"}) {
    EXPECT_EQ(DecodeCluster(ClusterOf({{"a:1", url}})).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  EXPECT_FALSE(DecodeCluster(ClusterOf({})).ok());
  EXPECT_FALSE(DecodeCluster(ClusterOf({{"a:1", ""}, {"a:1", ""}})).ok());
  EXPECT_FALSE(DecodeCluster(ClusterOf({{"a:1", "http://a:2"}, {"b:1", "http://a:2"}})).ok());
  EXPECT_FALSE(DecodeCluster(ClusterOf({{"a:1", ""}}, 1)).ok());
  v1::ClusterSpec many;
  for (int i = 0; i < 1025; ++i) many.add_servers()->set_address(absl::StrCat("a:", i + 1));
  EXPECT_FALSE(DecodeCluster(many).ok());
  many.mutable_servers()->RemoveLast();
  EXPECT_TRUE(DecodeCluster(many).ok());
}

}  // namespace
}  // namespace sparseagg::service
