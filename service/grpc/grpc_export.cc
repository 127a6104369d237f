// The streaming call ExportSubmissions.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "host/base/status_macros.h"
#include "host/base/to_status.h"
#include "service/admission/memory_shares.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/serialize.h"
#include "service/grpc/call_errors.h"
#include "service/grpc/call_reactor.h"
#include "service/grpc/grpc_service.h"
#include "service/handlers/call_log.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

// A page of an export where the server has no --max-page-bytes.
constexpr uint64_t kUnlimitedPageBytes = uint64_t{16} << 20;

// An ExportSubmissions call: all pages, one after the other, each made when in-flight memory for it is reserved. A page
// reads the round anew, so that a slow reader keeps no submission of a round that is closed in the meantime.
class ExportReactor final : public CallReactor<ExportReactor, grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  ExportReactor(AggregationService* service, CallContext* context)
      : CallReactor(&service->context(), context), service_(*service) {}

  static ExportReactor* Start(const std::shared_ptr<ExportReactor>& self, const grpc::ByteBuffer* message) {
    self->KeepAlive(self);
    if (!self->ReserveForCall(kStreamBytes)) return self.get();
    self->server_.pool.Post([self, message] {
      const absl::Status status = ToStatus([&] { return self->Open(*message); });
      status.ok() ? self->WriteNext() : self->Finish(ToGrpc(status));
    });
    return self.get();
  }

  void OnWriteDone(bool ok) override {
    reservation_.Release();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (page_token_.empty()) return Finish(grpc::Status::OK);
    WriteNext();
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& message) {
    v1::ExportSubmissionsRequest request;
    RETURN_IF_ERROR(ParseNames(message, &request));
    LogCall(LogLevel::kInfo, context_, "ExportSubmissions", request.name());
    ASSIGN_OR_RETURN(round_, service_.methods().FindRound(context_, request.name()));
    ASSIGN_OR_RETURN(query_.tensor, round_->config().ChooseTensor(request.tensor()));
    query_.keys = {request.range().begin(), request.range().end()};
    const uint64_t limit = server_.limits.max_page_bytes == 0 ? kUnlimitedPageBytes : server_.limits.max_page_bytes;
    query_.max_bytes = request.max_page_bytes() == 0 ? limit : std::min(limit, request.max_page_bytes());
    query_.sample_every = request.sample_every();
    page_token_ = request.page_token();
    return absl::OkStatus();
  }

  void WriteNext() {
    server_.in_flight.Acquire(
        PageInFlightBytes(round_->ExportPageBytes(query_)),
        [self = self_](InFlightReservation reservation) {
          self->reservation_ = std::move(reservation);
          // On a thread of its own: the first page sorts the submissions, which may take seconds, and others wait.
          self->server_.inspections.Post([self] {
            const absl::Status made = ToStatus([&] { return self->MakePage(); });
            made.ok() ? self->StartWrite(&self->page_) : self->Finish(ToGrpc(made, self->context_));
          });
        },
        [canceller = canceller_] { canceller->Cancel(); }, InFlightMemory::Wait::kUnbounded, canceller_->peer());
  }

  absl::Status MakePage() {
    ASSIGN_OR_RETURN(ExportPage exported, round_->Export(query_, page_token_));
    page_token_ = exported.next_page_token;
    v1::ExportedSubmissions page;
    EncodeExport(round_->config().tensors[query_.tensor], std::move(exported), &page);
    page_.Clear();
    return Serialize(page, &page_);
  }

  AggregationService& service_;
  std::shared_ptr<Round> round_;
  Round::ExportQuery query_;
  std::string page_token_;  // of the next page; empty before the first and after the last one
  InFlightReservation reservation_;
  grpc::ByteBuffer page_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::ExportSubmissions(Context* context,
                                                                                  const grpc::ByteBuffer* message) {
  return ExportReactor::Start(std::make_shared<ExportReactor>(this, context), message);
}

}  // namespace sparseagg::service
