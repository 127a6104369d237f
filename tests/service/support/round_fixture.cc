#include "tests/service/support/round_fixture.h"

#include "host/base/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"

namespace sparseagg::service {

ServerContext& RoundFixture::context() {
  if (server_ == nullptr) server_ = std::make_unique<ServerContext>(&engine_, &clock_, limits_, num_threads_);
  return *server_;
}

Registry& RoundFixture::registry() {
  if (registry_ == nullptr) registry_ = std::make_unique<Registry>(context().ForRounds());
  return *registry_;
}

absl::StatusOr<std::shared_ptr<Round>> RoundFixture::TryOpen(const v1::RoundSpec& spec, const std::string& id) {
  ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(spec, limits_));
  config.id = id;
  return registry().Create(std::move(config));
}

std::shared_ptr<Round> RoundFixture::Open(const v1::RoundSpec& spec, const std::string& id) {
  auto round = TryOpen(spec, id);
  EXPECT_THAT(round, IsOk());
  return *round;
}

absl::StatusOr<UploadProgress> RoundFixture::Put(Round& round, const v1::UpdateChunk& chunk) {
  ASSIGN_OR_RETURN(const Chunk decoded, DecodeChunk(chunk));
  return round.intake().PutChunk(chunk.client_id(), chunk.submission_id(), decoded, chunk.upload_tag());
}

absl::StatusOr<Receipt> RoundFixture::CommitNamed(Intake& intake, const std::string& client,
                                                  const std::string& submission, const std::string& tag) {
  absl::StatusOr<Receipt> answer = absl::UnknownError("");
  Event answered;
  intake.CommitNamed(client, submission, tag, [&](absl::StatusOr<Receipt> receipt) {
    answer = std::move(receipt);
    answered.Notify();
  });
  answered.Wait();
  return answer;
}

absl::StatusOr<Receipt> RoundFixture::Submit(Round& round, const v1::UpdateChunk& chunk) {
  RETURN_IF_ERROR(Put(round, chunk).status());
  return CommitNamed(round, chunk.client_id(), chunk.submission_id(), chunk.upload_tag());
}

absl::StatusOr<Receipt> RoundFixture::Submit(Round& round, const std::string& client, const std::vector<uint32_t>& keys,
                                             const std::vector<float>& values) {
  return Submit(round, MakeChunk("", client, keys, values));
}

RoundSnapshot RoundFixture::AwaitEnd(Round& round) {
  Event ended;
  round.Wait(absl::InfiniteDuration(), [&] { ended.Notify(); });
  ended.Wait();
  return round.Snapshot();
}

void RoundFixture::RunPendingTasks() {
  clock_.AwaitDue(context().timer);
  // One task per thread, all of which must run at the same time: then no earlier task is left.
  struct Barrier {
    std::mutex mu;
    std::condition_variable changed;
    int missing;
    void Pass() {
      std::unique_lock lock(mu);
      --missing;
      changed.notify_all();
      while (missing > 0) changed.wait(lock);
    }
  };
  const auto barrier = std::make_shared<Barrier>();
  barrier->missing = num_threads_ + 1;
  for (int i = 0; i < num_threads_; ++i) context().pool.Post([barrier] { barrier->Pass(); });
  barrier->Pass();
}

std::map<uint64_t, float> RoundFixture::ResultOf(Round& round) {
  AwaitEnd(round);
  const auto results = round.GetResults();
  EXPECT_THAT(results, IsOk());
  if (!results.ok()) return {};
  const Result& result = (**results)[0];
  v1::ResultPage page;
  EncodePage(round.config().tensors[0], result, {0, result.num_keys}, {}, true, &page);
  return ToMap(page);
}

}  // namespace sparseagg::service
