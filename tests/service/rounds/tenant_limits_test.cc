// What one tenant may take, and that others have theirs.
#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/registry.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

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
