// AggregationService: results.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/base/to_status.h"
#include "service/codec/round_codec.h"
#include "service/rounds/result_pages.h"
#include "service/rpc/answer_reactor.h"
#include "service/rpc/call_reactor.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/grpc_util.h"
#include "service/rpc/page_stream.h"
#include "service/rpc/page_writer.h"

namespace sparseagg::service {
namespace {

absl::StatusOr<size_t> ChooseTensor(const RoundConfig& config, const std::string& name) {
  if (!name.empty()) return config.FindTensor(name);
  if (config.tensors.size() == 1) return 0;
  return absl::InvalidArgumentError(absl::StrCat("the round has ", config.tensors.size(), " tensors; name one"));
}

class PageReactor final : public AnswerReactor {
 public:
  PageReactor(AggregationService* service, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : AnswerReactor(&service->context(), context), service_(*service), response_(response) {}

  static PageReactor* Start(const std::shared_ptr<PageReactor>& self, const grpc::ByteBuffer* message) {
    self->Keep(self);
    if (!self->Hold(kStreamBytes)) return self.get();
    self->server_.pool.Post([self, message] {
      if (const absl::Status status = ToStatus([&] { return self->Open(*message); }); !status.ok()) {
        return self->Finish(ToGrpc(status));
      }
      self->AnswerWithin(self->page_bytes_, Wait::kBounded, [reactor = self.get()] { return reactor->Answer(); });
    });
    return self.get();
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& message) {
    v1::GetResultRequest request;
    RETURN_IF_ERROR(ParseNames(message, &request));
    LogCall(LogLevel::kDebug, context_, "GetResult", request.name());
    ASSIGN_OR_RETURN(round_, service_.FindRound(request.name()));
    ASSIGN_OR_RETURN(tensor_, ChooseTensor(round_->config(), request.tensor()));
    ASSIGN_OR_RETURN(format_, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(results_, round_->GetResults());
    ASSIGN_OR_RETURN(rows_, FindRows(result(), {request.range().begin(), request.range().end()}));
    first_ = request.page_token().empty();
    if (!first_) {
      ASSIGN_OR_RETURN(rows_, ResumeAt(request.page_token(), round_->create_time(), tensor_, rows_));
    }
    page_bytes_ = std::max(service_.PageBytes(request.page_size()), RowBytes(result()));
    return absl::OkStatus();
  }

  absl::Status Answer() {
    const RowInterval now = FirstPage(result(), rows_, page_bytes_);
    const absl::Duration begin = round_->clock().Monotonic();
    v1::ResultPage page;
    EncodePage(round_->config().tensors[tensor_], result(), now, format_, first_, &page);
    round_->RecordPage(page.ByteSizeLong(), round_->clock().Monotonic() - begin);
    if (now.end < rows_.end) page.set_next_page_token(MakePageToken(round_->create_time(), tensor_, now.end));
    return Serialize(page, response_);
  }

  const Result& result() const { return (*results_)[tensor_]; }

  AggregationService& service_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<Round> round_;
  Results results_;
  size_t tensor_ = 0;
  PageFormat format_;
  RowInterval rows_;   // what is left
  bool first_ = true;  // page of the tensor
  uint64_t page_bytes_ = 0;
};

class ResultReactor final : public CallReactor<ResultReactor, grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  ResultReactor(AggregationService* service, grpc::CallbackServerContext* context)
      : CallReactor(&service->context(), context), service_(*service), writer_(&service->context(), canceller_) {}

  static ResultReactor* Start(const std::shared_ptr<ResultReactor>& self, const grpc::ByteBuffer* message) {
    self->Keep(self);
    if (!self->Hold(kStreamBytes)) return self.get();
    self->server_.pool.Post([self, message] {
      const absl::Status status = ToStatus([&] { return self->Open(*message); });
      status.ok() ? self->WriteNext() : self->Finish(ToGrpc(status));
    });
    return self.get();
  }

  void OnWriteDone(bool ok) override {
    writer_.Taken();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    server_.pool.Post([self = self_] { self->WriteNext(); });
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& message) {
    v1::StreamResultRequest request;
    // It may name all tensors that a spec has.
    RETURN_IF_ERROR(ParseSpec(message, server_.limits, &request));
    LogCall(LogLevel::kDebug, context_, "StreamResult", request.name());
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(request.name()));
    const RoundConfig& config = round->config();
    if (static_cast<size_t>(request.tensors_size()) > config.tensors.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.tensors_size(), " tensors are named of a round that has ", config.tensors.size()));
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
    writer_.Next([self = self_](const absl::StatusOr<const grpc::ByteBuffer*>& page) {
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
