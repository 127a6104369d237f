// What is counted, and where it is served. tests/system/test_metrics.py reads it as Prometheus does.
#include "service/base/metrics.h"

#include "tests/service/support/server_fixture.h"
#include "tests/service/support/stored_server.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

std::string TextOf(const Metrics& metrics) {
  return metrics.Text([] {
    return std::vector<GaugeValue>{
        {"sparseagg_rounds", "", 3, "open"},           {"sparseagg_rounds", "", 0, "done"},
        {"sparseagg_connections", "", 4, ""},          {"sparseagg_in_flight_bytes", "", 13, ""},
        {"sparseagg_in_flight_waiting", "", 5, ""},    {"sparseagg_kept_bytes", "", 12, ""},
        {"sparseagg_gpu_usable", "", 1, "0", "device"}};
  });
}

TEST(MetricsTest, Text_WhatWasCounted_IsThereAndNothingElse) {
  Metrics metrics;
  metrics.SetEngine("cpu", "a device");
  metrics.CountSubmission(/*duplicate=*/false, 5, 40);
  metrics.CountSubmission(/*duplicate=*/true, 5, 40);
  metrics.CountWithdrawn(3);
  metrics.CountRefused(absl::InvalidArgumentError(""));
  metrics.CountRefused(absl::ResourceExhaustedError(""));
  metrics.CountRefused(absl::FailedPreconditionError(""));
  metrics.CountRefused(absl::InternalError(""));
  metrics.CountClipped({.factor = 0.5, .max_keys = true});
  metrics.CountEndedConnections(2);
  metrics.CountRefusedInFlight();
  metrics.ObserveStage(RoundStage::kDecode, absl::Microseconds(20));
  EXPECT_THAT(
      TextOf(metrics),
      AllOf(HasSubstr("sparseagg_submissions_total{result=\"accepted\"} 1\n"),
            HasSubstr("sparseagg_submissions_total{result=\"duplicate\"} 1\n"),
            HasSubstr("sparseagg_submissions_total{result=\"invalid\"} 1\n"),
            HasSubstr("sparseagg_submissions_total{result=\"shed\"} 1\n"),
            HasSubstr("sparseagg_submissions_total{result=\"stale\"} 1\n"),
            HasSubstr("sparseagg_submissions_total{result=\"failed\"} 1\n"),
            HasSubstr("sparseagg_submissions_withdrawn_total 3\n"),
            HasSubstr("sparseagg_submissions_clipped_total{bound=\"l2\"} 1\n"),
            HasSubstr("sparseagg_submissions_clipped_total{bound=\"linf\"} 0\n"),
            HasSubstr("sparseagg_submissions_clipped_total{bound=\"max_keys\"} 1\n"),
            HasSubstr("sparseagg_rejected_total{reason=\"invalid_argument\"} 1\n"),
            HasSubstr("sparseagg_update_tuples_total 5\n"), HasSubstr("sparseagg_update_bytes_total 40\n"),
            HasSubstr("sparseagg_stage_seconds_bucket{stage=\"decode\",le=\"1e-05\"} 0\n"),
            HasSubstr("sparseagg_stage_seconds_bucket{stage=\"decode\",le=\"3e-05\"} 1\n"),
            HasSubstr("sparseagg_connections 4\n"), HasSubstr("sparseagg_connections_ended_total 2\n"),
            HasSubstr("sparseagg_in_flight_bytes 13\n"), HasSubstr("sparseagg_in_flight_waiting 5\n"),
            HasSubstr("sparseagg_in_flight_refused_total 1\n"), HasSubstr("sparseagg_rounds{state=\"open\"} 3\n"),
            HasSubstr("sparseagg_kept_bytes 12\n"), HasSubstr("sparseagg_gpu_usable{device=\"0\"} 1\n"),
            HasSubstr("sparseagg_engine_info{device=\"a device\",engine=\"cpu\"} 1\n")));
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

TEST_F(MetricsServerTest, Address_OffLoopback_NeedsInsecure) {
  options_.metrics_address = "0.0.0.0:0";
  EXPECT_THAT(Server::Start(options_, CreateCpuEngine()).status(), Fails(Code::kInvalidArgument, HasSubstr("0.0.0.0")));
}

TEST_F(MetricsServerTest, Counts_OfRealCalls_AreByWhatBecameOfThem) {
  const std::string round = Create(SumSpec());
  const auto chunk = MakeChunk(round, "a", {1, 2}, {1, 2});
  ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  ASSERT_THAT(client().SubmitStream({chunk}), IsOk());
  EXPECT_THAT(client().SubmitStream({MakeChunk(round, "b", {100}, {1})}), Fails(Code::kInvalidArgument, HasSubstr("")));
  EXPECT_THAT(TextOf(server().context().metrics),
              AllOf(HasSubstr("sparseagg_submissions_total{result=\"accepted\"} 1\n"),
                    HasSubstr("sparseagg_submissions_total{result=\"duplicate\"} 1\n"),
                    HasSubstr("sparseagg_submissions_total{result=\"invalid\"} 1\n"),
                    HasSubstr("sparseagg_update_tuples_total 2\n"), Not(HasSubstr(round))));
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
