// What is counted, and where it is served. tests/system/test_metrics.py reads it as Prometheus does.
#include "service/base/metrics.h"

#include "tests/service/support/server_fixture.h"
#include "tests/service/support/stored_server.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string TextOf(const Metrics& metrics) {
  return metrics.Text([] { return std::vector<GaugeValue>(); });
}

class MetricsServerTest : public ServerFixture {};

TEST_F(MetricsServerTest, Address_Taken_FailsUnlessItIsOptional) {
  options_.metrics_address = "127.0.0.1:0";
  const std::string taken = server().metrics_address();
  EXPECT_THAT(taken, ::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  ServerOptions second = options_;
  second.metrics_address = taken;
  EXPECT_THAT(Server::Start(second, CreateCpuEngine()).status(),
              Fails(Code::kUnavailable, AllOf(HasSubstr("--metrics-address"), HasSubstr(taken))));
  second.metrics_optional = true;
  const auto without = Server::Start(second, CreateCpuEngine());
  ASSERT_THAT(without, IsOk());
  EXPECT_EQ((*without)->metrics_address(), "");
}

class MetricsRestartTest : public StoredServer {
 protected:
  MetricsRestartTest() : StoredServer(Durability::kSync) {}
};

// Prometheus takes all that a new process counts for new.
TEST_F(MetricsRestartTest, Counts_AfterARestart_AreOfThisRun) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_clip()->set_linf(1);
  const std::string round = Create(spec);
  const auto accepted = [&](int number) {
    return HasSubstr(absl::StrCat("sparseagg_submissions_total{result=\"accepted\"} ", number, "\n"));
  };
  const auto clipped = [&](int number) {
    return HasSubstr(absl::StrCat("sparseagg_submissions_clipped_total{bound=\"linf\"} ", number, "\n"));
  };
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "a", {1, 2}, {1, 2})}), IsOk());
  EXPECT_THAT(TextOf(server().context().metrics), AllOf(accepted(1), clipped(1)));
  Restart();
  EXPECT_EQ(client().Get(round)->num_submissions(), 1);
  EXPECT_THAT(TextOf(server().context().metrics),
              AllOf(accepted(0), clipped(0), HasSubstr("sparseagg_update_tuples_total 0\n")));
  ASSERT_THAT(client().SubmitStream({MakeChunk(round, "b", {1, 2}, {1, 2})}), IsOk());
  EXPECT_THAT(TextOf(server().context().metrics), AllOf(accepted(1), clipped(1)));
}

}  // namespace
}  // namespace sparseagg::service
