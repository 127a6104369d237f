#include "python/engine/round_host.h"

#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "service/auth/authorize.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"

namespace sparseagg::python {
namespace {

constexpr int kCallThreads = 1;  // ends waits; all else runs on the callers' threads

// A call by this process, which may do all that an admin of the default tenant may.
class ProcessCall final : public service::UnaryCall, public service::Caller {
 public:
  ProcessCall(service::ApiContext* context, std::string request, bool may_block, RoundHost::Done done)
      : UnaryCall(context), request_(std::move(request)), may_block_(may_block), done_(std::move(done)) {}

  const Caller& caller() const override { return *this; }
  const absl::Cord& request() const override { return request_; }
  bool MayBlock() const override { return may_block_; }
  std::string* response() override { return &response_; }
  std::string PeerName() const override { return ""; }
  absl::string_view Traceparent() const override { return ""; }

 private:
  void Send(const absl::Status& status) override { done_(status, std::move(response_)); }
  std::function<void()> ReclaimFunction() override { return nullptr; }  // in-flight memory has no limit here

  const absl::Cord request_;
  std::string response_;
  const bool may_block_;
  const RoundHost::Done done_;
};

}  // namespace

service::Limits NoLimits() {
  service::Limits limits;
  limits.max_tensors = 0;
  limits.max_row_width = 0;
  limits.max_submissions = 0;
  limits.max_tuples_per_submission = 0;
  limits.max_bytes_per_submission = 0;
  limits.max_result_ttl = absl::InfiniteDuration();
  limits.max_message_bytes = 0;
  limits.max_page_bytes = 0;
  limits.max_open_rounds = 0;
  limits.max_uploads = 0;
  limits.max_wait = absl::InfiniteDuration();
  return limits;
}

RoundHost::RoundHost(int merges, std::string noise_key, const LocalRuntime& runtime)
    : runtime_(runtime),
      context_(&runtime.engine, &service::SystemClock(), NoLimits(), kCallThreads),
      merges_(merges),
      registry_(Services()),
      streams_(&registry_, Services()),
      models_(&registry_, &streams_, Services()),
      methods_(&context_, &registry_, &streams_),
      model_methods_(&context_, &registry_, &models_) {
  context_.noise_key = std::move(noise_key);
  for (auto entries : {methods_.Entries(), model_methods_.Entries()}) {
    for (service::MethodEntry& entry : entries) handlers_[Name(entry.method)] = std::move(entry.handler);
  }
}

RoundHost::~RoundHost() {
  context_.timer.Stop();
  merges_.Stop();
  context_.Stop();
}

service::RoundServices RoundHost::Services() {
  return {context_.engine, context_.clock,   context_.limits,   context_.tenants,   context_.timer,
          merges_,         context_.metrics, /*store=*/nullptr, &context_.noise_key};
}

void RoundHost::Begin(absl::string_view method, std::string request, bool may_block, Done done) {
  const auto handler = handlers_.find(method);
  if (handler == handlers_.end()) {
    return done(absl::UnimplementedError(absl::StrCat("rounds of this process have no method ", method)), "");
  }
  handler->second(std::make_shared<ProcessCall>(&context_, std::move(request), may_block, std::move(done)));
}

absl::StatusOr<std::string> RoundHost::Call(absl::string_view method, std::string request) {
  Mutex mu;
  CondVar ended;
  std::optional<absl::StatusOr<std::string>> answer;
  Begin(method, std::move(request), /*may_block=*/true, [&](const absl::Status& status, std::string response) {
    MutexLock lock(&mu);
    status.ok() ? answer.emplace(std::move(response)) : answer.emplace(status);
    ended.Signal();
  });
  MutexLock lock(&mu);
  while (!answer.has_value()) ended.Wait(&mu);
  return *std::move(answer);
}

void RoundHost::Start(absl::string_view method, std::string request, uint64_t number) {
  Begin(method, std::move(request), /*may_block=*/false,
        [this, number](const absl::Status& status, std::string response) {
          Push({number, status, std::move(response)});
        });
}

std::vector<RoundHost::Ended> RoundHost::NextEnded() {
  MutexLock lock(&mu_);
  while (ended_.empty() && !ends_waits_) changed_.Wait(&mu_);
  return ends_waits_ ? std::vector<Ended>() : std::exchange(ended_, {});
}

void RoundHost::EndWaits() {
  MutexLock lock(&mu_);
  ends_waits_ = true;
  changed_.SignalAll();
}

void RoundHost::Push(Ended ended) {
  MutexLock lock(&mu_);
  ended_.push_back(std::move(ended));
  changed_.Signal();
}

}  // namespace sparseagg::python
