// The long poll WaitRound.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/codec/duration_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/rpc/answer_reactor.h"
#include "service/rpc/call_errors.h"
#include "service/rpc/call_log.h"
#include "service/rpc/grpc_service.h"

namespace sparseagg::service {
namespace {

// A call that waits until its round has ended, or until a timeout. No thread waits meanwhile. The permit counts the
// call among those that wait.
class WaitReactor final : public AnswerReactor {
 public:
  WaitReactor(AggregationService* service, CallContext* context, std::shared_ptr<Round> round, Permit permit,
              grpc::ByteBuffer* response)
      : AnswerReactor(&service->context(), context),
        service_(*service),
        round_(std::move(round)),
        permit_(std::move(permit)),
        response_(response) {}

  static WaitReactor* Start(const std::shared_ptr<WaitReactor>& self, absl::Duration timeout) {
    self->KeepAlive(self);
    self->wait_ = self->round_->Wait(timeout, [self] {
      self->server_.pool.Post([self] {
        self->ReserveAndAnswer(MostRoundBytes(self->round_->config()), Wait::kUnbounded,
                               [reactor = self.get()] { return reactor->Answer(); });
      });
    });
    // A drain releases the calls that wait, but this call may have begun to wait just after that.
    if (self->service_.registry().draining()) self->round_->ReleaseWaiters();
    return self.get();
  }

  void OnCancel() override {
    if (round_->StopWaiting(wait_)) return Finish(grpc::Status::CANCELLED);
    AnswerReactor::OnCancel();
  }

 private:
  absl::Status Answer() {
    // A client that gets an unfinished round waits again at once, and gRPC would cancel that call as it shuts down.
    if (service_.registry().draining() && !HasEnded(round_->state()))
      return absl::UnavailableError("the server is shutting down");
    return service_.Respond(*round_, response_);
  }

  AggregationService& service_;
  const std::shared_ptr<Round> round_;
  const Permit permit_;
  grpc::ByteBuffer* const response_;
  Round::WaitId wait_ = 0;
};

}  // namespace

AggregationService::Unary* AggregationService::WaitRound(Context* context, const grpc::ByteBuffer* message,
                                                         grpc::ByteBuffer* response) {
  std::shared_ptr<Round> round;
  absl::Duration timeout = server_.limits.max_wait;
  absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::WaitRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    LogCall(LogLevel::kDebug, *context, "WaitRound", request.name());
    ASSIGN_OR_RETURN(round, FindRound(*context, request.name()));
    if (!request.has_timeout()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration wanted, DecodeDuration(request.timeout(), "timeout"));
    timeout = std::min(timeout, wanted);
    return absl::OkStatus();
  });
  if (!asked.ok()) return AtOnce(context, [&] { return asked; });
  if (!server_.waits.TryAcquire()) {
    Unary* const reactor = context->DefaultReactor();
    reactor->Finish(
        RetryLater(absl::StrCat(server_.waits.limit(),
                                " calls already wait for rounds, the most that the server's memory limit of ",
                                server_.limits.memory_limit_bytes, " bytes allows"),
                   *context));
    return reactor;
  }
  return WaitReactor::Start(
      std::make_shared<WaitReactor>(this, context, std::move(round), Permit(&server_.waits), response), timeout);
}

}  // namespace sparseagg::service
