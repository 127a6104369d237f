// Calls that read results.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/base/to_status.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/rounds/result_pages.h"
#include "service/rpc/answer_reactor.h"
#include "service/rpc/call_errors.h"
#include "service/rpc/call_log.h"
#include "service/rpc/call_reactor.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/page_stream.h"
#include "service/rpc/page_writer.h"
#include "service/rpc/serialize.h"

namespace sparseagg::service {
namespace {

absl::StatusOr<size_t> ChooseTensor(const RoundConfig& config, const std::string& name) {
  if (!name.empty()) return config.FindTensor(name);
  if (config.tensors.size() == 1) return 0;
  return absl::InvalidArgumentError(
      absl::StrCat("the round has ", config.tensors.size(), " tensors; the request must name one"));
}

// A GetResult call: one page.
class PageReactor final : public AnswerReactor {
 public:
  PageReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response)
      : AnswerReactor(&service->context(), context), service_(*service), response_(response) {}

  static PageReactor* Start(const std::shared_ptr<PageReactor>& self, const grpc::ByteBuffer* message) {
    self->KeepAlive(self);
    if (!self->ReserveForCall(kStreamBytes)) return self.get();
    self->server_.pool.Post([self, message] {
      if (const absl::Status status = ToStatus([&] { return self->Open(*message); }); !status.ok()) {
        return self->Finish(ToGrpc(status));
      }
      self->ReserveAndAnswer(self->pages_->NextBytes(), Wait::kBounded,
                             [reactor = self.get()] { return reactor->Answer(); });
    });
    return self.get();
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& message) {
    v1::GetResultRequest request;
    RETURN_IF_ERROR(ParseNames(message, &request));
    LogCall(LogLevel::kDebug, context_, "GetResult", request.name());
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(context_, request.name()));
    ASSIGN_OR_RETURN(const size_t tensor, ChooseTensor(round->config(), request.tensor()));
    ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(Results results, round->GetResults());
    ASSIGN_OR_RETURN(pages_, PageStream::Create(round, std::move(results), {tensor},
                                                {request.range().begin(), request.range().end()},
                                                service_.PageBytes(request.page_size()), format, request.page_token()));
    return absl::OkStatus();
  }

  absl::Status Answer() {
    v1::ResultPage page;
    pages_->Next(&page);
    return Serialize(page, response_);
  }

  AggregationService& service_;
  grpc::ByteBuffer* const response_;
  std::optional<PageStream> pages_;  // only the first one is asked for
};

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
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(context_, request.name()));
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
    ASSIGN_OR_RETURN(PageStream pages, PageStream::Create(round, std::move(results), std::move(tensors),
                                                          {request.range().begin(), request.range().end()},
                                                          service_.PageBytes(request.page_size()), format));
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

AggregationService::Unary* AggregationService::GetResult(Context* context, const grpc::ByteBuffer* message,
                                                         grpc::ByteBuffer* response) {
  return PageReactor::Start(std::make_shared<PageReactor>(this, context, response), message);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::StreamResult(Context* context,
                                                                             const grpc::ByteBuffer* message) {
  return ResultReactor::Start(std::make_shared<ResultReactor>(this, context), message);
}

}  // namespace sparseagg::service
