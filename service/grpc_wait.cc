// AggregationService: the long poll. No thread waits.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/status_macros.h"
#include "service/codec/duration_codec.h"
#include "service/contain.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"

namespace sparseagg::service {
namespace {

class WaitReactor final : public grpc::ServerUnaryReactor {
 public:
  WaitReactor(AggregationService* service, std::shared_ptr<Round> round, Slot slot, grpc::ByteBuffer* response)
      : service_(*service), round_(std::move(round)), slot_(std::move(slot)), response_(response) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static WaitReactor* Start(const std::shared_ptr<WaitReactor>& self, absl::Duration timeout) {
    WaitReactor* reactor = self.get();
    reactor->self_ = self;
    reactor->wait_ = reactor->round_->Wait(timeout, [self] {
      self->service_.machine().pool.Post([self] { self->Finish(ToGrpc(Contain([&] { return self->Answer(); }))); });
    });
    // Nobody waits on a server that is shutting down, nor who comes while it begins to.
    if (reactor->service_.registry().draining()) reactor->round_->ReleaseWaiters();
    return reactor;
  }

  void OnCancel() override {
    if (round_->StopWaiting(wait_)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { self_.reset(); }

 private:
  absl::Status Answer() {
    // Who got a round that has not ended would ask again at once, while gRPC shuts down and cancels what comes.
    if (service_.registry().draining() && !HasEnded(round_->state()))
      return absl::UnavailableError("the server is shutting down");
    return service_.Answer(*round_, response_);
  }

  AggregationService& service_;
  const std::shared_ptr<Round> round_;
  const Slot slot_;
  grpc::ByteBuffer* const response_;
  Round::WaitId wait_ = 0;
  std::shared_ptr<WaitReactor> self_;
};

}  // namespace

AggregationService::Unary* AggregationService::WaitRound(Context* context, const grpc::ByteBuffer* message,
                                                         grpc::ByteBuffer* response) {
  std::shared_ptr<Round> round;
  absl::Duration timeout = machine_.limits.max_wait;
  absl::Status asked = Contain([&]() -> absl::Status {
    v1::WaitRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    LogCall(LogLevel::kDebug, *context, "WaitRound", request.name());
    ASSIGN_OR_RETURN(round, FindRound(request.name()));
    if (!request.has_timeout()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration wanted, DecodeDuration(request.timeout(), "timeout"));
    timeout = std::min(timeout, wanted);
    return absl::OkStatus();
  });
  if (!asked.ok()) return AtOnce(context, [&] { return asked; });
  if (!machine_.waits.TryTake()) {
    Unary* const reactor = context->DefaultReactor();
    reactor->Finish(TryAgain(absl::StrCat(machine_.waits.limit(),
                                          " calls wait for rounds, as many as the server's "
                                          "memory limit of ",
                                          machine_.limits.memory_limit_bytes, " bytes has room for"),
                             *context));
    return reactor;
  }
  return WaitReactor::Start(std::make_shared<WaitReactor>(this, std::move(round), Slot(&machine_.waits), response),
                            timeout);
}

}  // namespace sparseagg::service
