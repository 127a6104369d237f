// The streaming call StreamResult.
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/codec/parse.h"
#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reactors.h"
#include "service/handlers/caller.h"
#include "service/handlers/page_stream.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::service {
namespace {

// A StreamResult call: all pages, one after the other.
class ResultReactor final : public CallReactor<ResultReactor, grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  ResultReactor(AggregationService* service, CallContext* context)
      : CallReactor(&service->context(), context), service_(*service), writer_(&service->context(), canceller_) {}

  static ResultReactor* Start(const std::shared_ptr<ResultReactor>& self, const grpc::ByteBuffer* message) {
    self->KeepAlive(self);
    if (!self->ReserveForCall(kStreamBytes)) return self.get();
    self->server_.pool.Post([self, message] {
      const absl::Status status = ToStatus([&] { return self->Open(*message); });
      status.ok() ? self->WriteNext() : self->Finish(ToGrpc(status));
    });
    return self.get();
  }

  void OnWriteDone(bool ok) override {
    writer_.OnWritten();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    server_.pool.Post([self = self_] { self->WriteNext(); });
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& message) {
    v1::StreamResultRequest request;
    // The request may name as many tensors as a spec has.
    RETURN_IF_ERROR(ParseSpec(message, server_.limits, &request));
    LogCall(LogLevel::kDebug, context_, "StreamResult", request.name());
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.methods().FindRound(context_, request.name()));
    const RoundConfig& config = round->config();
    if (static_cast<size_t>(request.tensors_size()) > config.tensors.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the request names ", request.tensors_size(),
                                                     " tensors, but the round has ", config.tensors.size()));
    }
    std::vector<size_t> tensors;
    for (const std::string& name : request.tensors()) {
      ASSIGN_OR_RETURN(const size_t tensor, config.FindTensor(name));
      tensors.push_back(tensor);
    }
    for (size_t t = 0; request.tensors().empty() && t < config.tensors.size(); ++t) tensors.push_back(t);
    ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(Results results, round->GetResults());
    ASSIGN_OR_RETURN(PageStream pages,
                     PageStream::Create(round, std::move(results), std::move(tensors),
                                        {request.range().begin(), request.range().end()},
                                        service_.methods().PageBytes(request.max_page_bytes()), format));
    writer_.Open(std::move(pages), nullptr);
    return absl::OkStatus();
  }

  void WriteNext() {
    writer_.Prepare([self = self_](const absl::StatusOr<const grpc::ByteBuffer*>& page) {
      page.ok() && *page != nullptr ? self->StartWrite(*page) : self->Finish(ToGrpc(page.status()));
    });
  }

  AggregationService& service_;
  PageWriter writer_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::StreamResult(Context* context,
                                                                             const grpc::ByteBuffer* message) {
  return ResultReactor::Start(std::make_shared<ResultReactor>(this, context), message);
}

}  // namespace sparseagg::service
