// Rounds: a close that multiplies the weights of the submissions.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/service/support/busy_thread.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::service {
namespace {

using sparseagg::testing::FailingAllocation;
using sparseagg::testing::Try;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;
using Weights = std::vector<Round::ClientWeight>;

class RoundWeightsTest : public SubmissionsFixture {
 protected:
  // A sealed round with submissions {7: value}, of this weight where the op is a mean.
  std::shared_ptr<Round> Sealed(const std::vector<std::pair<std::string, double>>& sent,
                                const v1::RoundSpec& spec = MeanSpec(), const std::string& id = "r") {
    auto round = Open(spec, id);
    for (const auto& [client, value] : sent) {
      const double weight = spec.aggregation().op() == v1::OP_MEAN ? value : 1;
      EXPECT_THAT(SubmitWeighted(*round, client, static_cast<float>(value), weight), IsOk());
    }
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }
};

TEST_F(RoundWeightsTest, Close_MultipliesWeights) {
  const auto round = Sealed({{"a", 1}, {"b", 2}, {"c", 4}});
  ASSERT_THAT(round->CloseWithWeights(Weights{{"c", 0.5}, {"a", 4}, {"b", 1}}), IsOk());
  // Weights 4, 2 and 2.
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, (4.0f + 4.0f + 8.0f) / 8.0f)));
  const auto listed = round->ListSubmissions(10, "");
  ASSERT_THAT(listed, IsOk());
  EXPECT_EQ(listed->submissions[0].weight, 1.0);
  EXPECT_EQ(listed->submissions[0].client_weight, 4.0);
  EXPECT_EQ(listed->submissions[2].weight, 4.0);
  EXPECT_EQ(listed->submissions[2].client_weight, 0.5);
}

TEST_F(RoundWeightsTest, Close_ZeroWeight_LeavesTheClientOut) {
  const auto round = Sealed({{"a", 1}, {"b", 100}, {"c", 3}});
  ASSERT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 0}, {"c", 1}}), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, (1.0f + 9.0f) / 4.0f)));
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "c"));
  EXPECT_EQ(round->Snapshot().num_submissions, 2);
  EXPECT_EQ(round->Snapshot().num_withdrawn, 1);
}

TEST_F(RoundWeightsTest, Close_ZeroAndOne_AreTakenByEveryOp) {
  int id = 0;
  for (const v1::Op op : {v1::OP_SUM, v1::OP_MAX, v1::OP_MIN, v1::OP_MEDIAN, v1::OP_COORDINATE_MEAN}) {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_aggregation()->set_op(op);
    const auto round = Sealed({{"a", 5}, {"b", 9}}, spec, std::to_string(id++));
    ASSERT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 0}}), IsOk());
    EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 5)));
  }
}

TEST_F(RoundWeightsTest, Close_OpsThatIgnoreWeights_AreNamed) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_aggregation()->set_op(v1::OP_MAX);
  const auto round = Sealed({{"a", 5}, {"b", 9}}, spec);
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 0.5}}),
              Fails(Code::kInvalidArgument, HasSubstr("tensor 'v'")));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "b"));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 9)));
}

TEST_F(RoundWeightsTest, Close_BadWeights_AreRefusedAndTheRoundStaysSealed) {
  const auto round = Sealed({{"a", 1}, {"b", 2}});
  const auto refuse = [&](const Weights& weights, Code code, const char* text) {
    EXPECT_THAT(round->CloseWithWeights(weights), Fails(code, HasSubstr(text)));
    EXPECT_EQ(round->state(), RoundState::kSealed);
    EXPECT_EQ(round->Snapshot().num_submissions, 2);
  };
  refuse({{"a", 1}, {"b", 1}, {"c", 1}}, Code::kInvalidArgument, "client 'c' has no committed submission");
  refuse({{"A", 1}, {"a", 1}, {"b", 1}}, Code::kInvalidArgument, "client 'A' has no committed submission");
  refuse({{"a", 1}}, Code::kInvalidArgument, "client 'b' has a submission and no weight");
  refuse({{"b", 1}}, Code::kInvalidArgument, "client 'a' has a submission and no weight");
  refuse({{"a", 1}, {"b", 1}, {"a", 1}}, Code::kInvalidArgument, "client 'a' is given twice");
  refuse({{"a", -1}, {"b", 1}}, Code::kInvalidArgument, "of client 'a' is not a finite number");
  refuse({{"a", 1}, {"b", std::numeric_limits<double>::quiet_NaN()}}, Code::kInvalidArgument, "client 'b'");
  refuse({{"a", 1}, {"b", std::numeric_limits<double>::infinity()}}, Code::kInvalidArgument, "client 'b'");
  refuse({{"a", 1}, {"b", 0x1p960}}, Code::kInvalidArgument, "of client 'b' is too large");
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 0x1p960}, {"b", 0x1p959}}), IsOk()) << "at the limit";
}

TEST_F(RoundWeightsTest, Close_OpenRound_IsRefused) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}}),
              Fails(Code::kFailedPrecondition, "client_weights need a SEALED round; the round is OPEN"));
}

TEST_F(RoundWeightsTest, Close_Again_IsFineWithTheSameWeightsOnly) {
  const auto round = Sealed({{"a", 1}, {"b", 2}, {"c", 3}});
  ASSERT_THAT(round->CloseWithWeights(Weights{{"a", 2}, {"b", 0}, {"c", 1}}), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(round->CloseWithWeights(Weights{{"c", 1}, {"b", 0}, {"a", 2}}), IsOk());
    for (const Weights& other : {Weights{{"a", 2}, {"b", 1}, {"c", 1}}, Weights{{"a", 1}, {"b", 0}, {"c", 1}},
                                 Weights{{"a", 2}, {"b", 0}}, Weights{{"a", 2}, {"b", 0}, {"c", 0}}}) {
      EXPECT_THAT(round->CloseWithWeights(other),
                  Fails(Code::kFailedPrecondition, HasSubstr("was not closed with these client_weights")));
    }
    AwaitEnd(*round);
  }
  const auto plain = Sealed({{"a", 1}}, MeanSpec(), "plain");
  EXPECT_THAT(plain->Close(), IsOk());
  EXPECT_THAT(plain->CloseWithWeights(Weights{{"a", 1}}), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundWeightsTest, Close_MergedOnArrival_TakesOnlyOnes) {
  const auto round = OpenMerged();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 0}}),
              Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v'")));
  EXPECT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 2}}),
              Fails(Code::kInvalidArgument, HasSubstr("tensor 'v'")));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  ASSERT_THAT(round->CloseWithWeights(Weights{{"a", 1}, {"b", 1}}), IsOk());
  EXPECT_EQ(ResultOf(*round)[0], 2);
}

TEST_F(RoundWeightsTest, Close_AnyAllocationFails_ChangesNothingOrAllOfIt) {
  num_threads_ = 1;
  int n = 0;
  for (bool failed = true; failed; ++n) {
    SCOPED_TRACE(n);
    const std::string long_name(64, 'x');  // every copy allocates
    const auto round = Sealed({{long_name, 1}, {"b" + long_name, 2}}, MeanSpec(), std::to_string(n));
    RunPendingTasks();
    absl::Status status;
    {
      const BusyThread busy(context().pool);  // so that only this thread allocates
      const Weights weights = {{long_name, 3}, {"b" + long_name, 0}};
      FailingAllocation failing(n);
      status = Try([&] { return round->CloseWithWeights(weights); });
      failed = failing.failed();
    }
    EXPECT_EQ(round->state() == RoundState::kSealed, !status.ok());
    EXPECT_EQ(ClientsOf(*round).size(), status.ok() ? 1 : 2);
    EXPECT_THAT(round->Close(), IsOk());
    EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, status.ok() ? 1.0f : (1.0f + 4.0f) / 3.0f)));
    ASSERT_LT(n, 1000);
  }
  EXPECT_GE(n, 2);
}

}  // namespace
}  // namespace sparseagg::service
