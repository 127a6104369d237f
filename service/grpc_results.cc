// AggregationService: results.
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/status_macros.h"
#include "service/codec/round_codec.h"
#include "service/contain.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"
#include "service/page_stream.h"
#include "service/result_pages.h"

namespace sparseagg::service {
namespace {

absl::StatusOr<size_t> ChooseTensor(const RoundConfig& config, const std::string& name) {
  if (!name.empty()) return config.FindTensor(name);
  if (config.tensors.size() == 1) return 0;
  return absl::InvalidArgumentError(absl::StrCat("the round has ", config.tensors.size(), " tensors; name one"));
}

class ResultReactor final : public grpc::ServerWriteReactor<v1::ResultPage> {
 public:
  explicit ResultReactor(AggregationService* service) : service_(*service) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static ResultReactor* Start(std::shared_ptr<ResultReactor> self, const v1::StreamResultRequest* request) {
    ResultReactor* reactor = self.get();
    reactor->self_ = self;
    reactor->service_.machine().pool.Post([self, request] {
      const absl::Status status = Contain([&] { return self->Open(*request); });
      status.ok() ? self->WriteNext() : self->Finish(ToGrpc(status));
    });
    return reactor;
  }

  // One page is in memory at a time: a slow reader costs no more.
  void OnWriteDone(bool ok) override {
    round_->NotePageTaken(service_.machine().clock.Monotonic() - written_);
    if (!ok) return Finish(grpc::Status::CANCELLED);
    service_.machine().pool.Post([self = self_] { self->WriteNext(); });
  }
  void OnDone() override { self_.reset(); }

 private:
  absl::Status Open(const v1::StreamResultRequest& request) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(request.name()));
    round_ = round;
    std::vector<size_t> tensors;
    for (const std::string& name : request.tensors()) {
      ASSIGN_OR_RETURN(const size_t tensor, round->config().FindTensor(name));
      tensors.push_back(tensor);
    }
    for (size_t t = 0; request.tensors().empty() && t < round->config().tensors.size(); ++t) tensors.push_back(t);
    ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(Results results, round->GetResults());
    ASSIGN_OR_RETURN(PageStream pages, PageStream::Create(round, std::move(results), std::move(tensors),
                                                          {request.range().begin(), request.range().end()},
                                                          service_.PageBytes(request.page_size()), format));
    pages_.emplace(std::move(pages));
    return absl::OkStatus();
  }

  void WriteNext() {
    if (pages_->Next(&page_)) {
      written_ = service_.machine().clock.Monotonic();
      StartWrite(&page_);
    } else {
      Finish(grpc::Status::OK);
    }
  }

  AggregationService& service_;
  std::shared_ptr<Round> round_;
  std::optional<PageStream> pages_;
  v1::ResultPage page_;
  absl::Duration written_ = absl::ZeroDuration();  // when the last write began
  std::shared_ptr<ResultReactor> self_;
};

}  // namespace

AggregationService::Unary* AggregationService::GetResult(Context* context, const v1::GetResultRequest* request,
                                                         v1::ResultPage* response) {
  LogCall(LogLevel::kDebug, *context, "GetResult", request->name());
  return OnPool(context, [this, request, response]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request->name()));
    ASSIGN_OR_RETURN(const size_t tensor, ChooseTensor(round->config(), request->tensor()));
    ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request->format()));
    ASSIGN_OR_RETURN(const Results results, round->GetResults());
    const Result& result = (*results)[tensor];
    ASSIGN_OR_RETURN(RowInterval rows, FindRows(result, {request->range().begin(), request->range().end()}));
    const bool first = request->page_token().empty();
    if (!first) {
      ASSIGN_OR_RETURN(rows, ResumeAt(request->page_token(), tensor, rows));
    }
    const RowInterval page = FirstPage(result, rows, PageBytes(request->page_size()));
    const absl::Duration begin = machine_.clock.Monotonic();
    EncodePage(round->config().tensors[tensor], result, page, format, first, response);
    round->NotePage(response->ByteSizeLong(), machine_.clock.Monotonic() - begin);
    if (page.end < rows.end) response->set_next_page_token(MakePageToken(tensor, page.end));
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::ResultPage>* AggregationService::StreamResult(Context* context,
                                                                           const v1::StreamResultRequest* request) {
  LogCall(LogLevel::kDebug, *context, "StreamResult", request->name());
  return ResultReactor::Start(std::make_shared<ResultReactor>(this), request);
}

}  // namespace sparseagg::service
