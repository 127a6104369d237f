// A test fixture for rounds without sockets: a server context with a manual clock and a hooked engine.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_ROUND_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_ROUND_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/server_context.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "tests/service/support/hooked_engine.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/threads.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {

class RoundFixture : public ::testing::Test {
 protected:
  ~RoundFixture() override {
    if (server_ != nullptr) server_->timer.Stop();
  }

  // Made at the first use, with `limits_` and `hooks_` at that time.
  ServerContext& context();
  Registry& registry();

  std::shared_ptr<Round> Open(const v1::RoundSpec& spec, const std::string& id = "r");
  absl::StatusOr<std::shared_ptr<Round>> TryOpen(const v1::RoundSpec& spec, const std::string& id = "r");

  // A submission of one chunk by name.
  static absl::StatusOr<Receipt> Submit(Round& round, const v1::UpdateChunk& chunk);
  static absl::StatusOr<Receipt> Submit(Round& round, const std::string& client, const std::vector<uint32_t>& keys,
                                        const std::vector<float>& values);
  // Waits for the answer.
  static absl::StatusOr<Receipt> CommitNamed(Intake& intake, const std::string& client, const std::string& submission,
                                             const std::string& tag = "");
  static absl::StatusOr<Receipt> CommitNamed(Round& round, const std::string& client, const std::string& submission,
                                             const std::string& tag = "") {
    return CommitNamed(round.intake(), client, submission, tag);
  }
  static absl::StatusOr<UploadProgress> Put(Round& round, const v1::UpdateChunk& chunk);

  void Advance(absl::Duration duration) { clock_.Advance(duration, context().timer); }
  // Waits until the round has ended.
  static RoundSnapshot AwaitEnd(Round& round);
  // Waits until the tasks posted to the timer and the pool so far have run.
  void RunPendingTasks();
  static std::map<uint64_t, float> ResultOf(Round& round);

  ManualClock clock_;
  EngineHooks hooks_;
  HookedEngine engine_{&hooks_};
  Limits limits_;
  int num_threads_ = 2;

 private:
  std::unique_ptr<ServerContext> server_;
  std::unique_ptr<Registry> registry_;
};

// Of a Status or StatusOr.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status) {
  return status.status();
}

MATCHER_P(HasCode, code, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code;
}
MATCHER_P2(Fails, code, matcher, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code &&
         ::testing::ExplainMatchResult(matcher, std::string(StatusOf(arg).message()), result_listener);
}
MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg);
  return arg.ok();
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_ROUND_FIXTURE_H_
