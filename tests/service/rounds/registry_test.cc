#include "service/rounds/registry.h"

#include "service/codec/spec_codec.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

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

TEST_F(RegistryTest, Drain_NoNewRoundsAndNobodyWaits) {
  const auto round = Open(SumSpec(), "a");
  Event answered;
  round->Wait(absl::InfiniteDuration(), [&] { answered.Notify(); });
  registry().Drain();
  answered.Wait();
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  EXPECT_THAT(TryOpen(SumSpec(), "b"), HasCode(Code::kUnavailable));
  auto config = DecodeRoundSpec(SumSpec(), limits_);
  EXPECT_THAT(registry().CreatePrivate(*std::move(config)), HasCode(Code::kUnavailable));
  EXPECT_THAT(Submit(*round, "c", {1}, {1}), IsOk());  // what is open goes on
}

}  // namespace
}  // namespace sparseagg::service
