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
  WaitReactor(AggregationService* service, std::shared_ptr<Round> round, Slot slot, v1::Round* response)
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
    service_.Encode(*round_, response_);
    return absl::OkStatus();
  }

  AggregationService& service_;
  const std::shared_ptr<Round> round_;
  const Slot slot_;
  v1::Round* const response_;
  Round::WaitId wait_ = 0;
  std::shared_ptr<WaitReactor> self_;
};

}  // namespace

AggregationService::Unary* AggregationService::WaitRound(Context* context, const v1::WaitRoundRequest* request,
                                                         v1::Round* response) {
  LogCall(LogLevel::kDebug, *context, "WaitRound", request->name());
  auto round = FindRound(request->name());
  if (!round.ok()) return AtOnce(context, round.status());
  absl::Duration timeout = machine_.limits.max_wait;
  if (request->has_timeout()) {
    const auto asked = DecodeDuration(request->timeout(), "timeout");
    if (!asked.ok()) return AtOnce(context, asked.status());
    timeout = std::min(timeout, *asked);
  }
  if (!machine_.waits.TryTake()) {
    Unary* const reactor = context->DefaultReactor();
    reactor->Finish(TryAgain(absl::StrCat(machine_.waits.limit(),
                                          " calls wait for rounds, as many as the server's "
                                          "memory limit of ",
                                          machine_.limits.memory_limit_bytes, " bytes has room for"),
                             *context));
    return reactor;
  }
  return WaitReactor::Start(std::make_shared<WaitReactor>(this, *std::move(round), Slot(&machine_.waits), response),
                            timeout);
}

}  // namespace sparseagg::service
