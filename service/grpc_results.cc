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

// One page, whose memory is counted until the client has taken it.
class PageReactor final : public grpc::ServerUnaryReactor {
 public:
  using Work = std::function<absl::Status()>;

  explicit PageReactor(grpc::CallbackServerContext* context) : canceller_(std::make_shared<Canceller>(context)) {}

  static PageReactor* Start(Machine& machine, grpc::CallbackServerContext* context, uint64_t page_bytes, Work work) {
    auto self = std::make_shared<PageReactor>(context);
    PageReactor* reactor = self.get();
    reactor->self_ = self;
    auto held = machine.transit.TryHold(kStreamBytes);
    if (!held.has_value()) {
      reactor->Finish(NoRoomInTransit(machine, *context));
      return reactor;
    }
    reactor->held_ = *std::move(held);
    machine.transit.AcquireSoon(
        PageTransitBytes(page_bytes),
        [self, &machine, context, work = std::move(work)](Credit credit) {
          if (!credit) return self->Finish(NoRoomInTransit(machine, *context));
          self->credit_ = std::move(credit);
          machine.pool.Post([self, work] { self->Finish(ToGrpc(Contain(work))); });
        },
        // The response cannot be taken back from a client that does not take it; only the call can be cut.
        [canceller = self->canceller_] { canceller->Cancel(); });
    return reactor;
  }

  void OnDone() override {
    canceller_->Done();
    self_.reset();
  }

 private:
  const std::shared_ptr<Canceller> canceller_;
  Credit held_;    // for the call itself
  Credit credit_;  // for the page
  std::shared_ptr<PageReactor> self_;
};

class ResultReactor final : public grpc::ServerWriteReactor<v1::ResultPage> {
 public:
  ResultReactor(AggregationService* service, grpc::CallbackServerContext* context)
      : service_(*service), context_(*context), canceller_(std::make_shared<Canceller>(context)) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static ResultReactor* Start(std::shared_ptr<ResultReactor> self, const v1::StreamResultRequest* request) {
    ResultReactor* reactor = self.get();
    reactor->self_ = self;
    Machine& machine = reactor->service_.machine();
    auto held = machine.transit.TryHold(kStreamBytes);
    if (!held.has_value()) {
      reactor->Finish(NoRoomInTransit(machine, reactor->context_));
      return reactor;
    }
    reactor->held_ = *std::move(held);
    machine.pool.Post([self, request] {
      const absl::Status status = Contain([&] { return self->Open(*request); });
      status.ok() ? self->WriteNext() : self->Finish(ToGrpc(status));
    });
    return reactor;
  }

  // One page is in memory at a time: a slow reader costs no more.
  void OnWriteDone(bool ok) override {
    round_->NotePageTaken(service_.machine().clock.Monotonic() - written_);
    if (!ok) return Finish(grpc::Status::CANCELLED);
    credit_.Release();
    service_.machine().pool.Post([self = self_] { self->WriteNext(); });
  }
  void OnDone() override {
    canceller_->Done();
    self_.reset();
  }

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
    page_bytes_ = service_.PageBytes(request.page_size());
    return absl::OkStatus();
  }

  // As soon as there is credit for it; on the pool.
  void WriteNext() {
    service_.machine().transit.Acquire(
        PageTransitBytes(page_bytes_),
        [self = self_](Credit credit) {
          self->credit_ = std::move(credit);
          self->WritePage();
        },
        // Nothing can be sent past a page that is not taken, not even a status.
        [canceller = canceller_] { canceller->Cancel(); });
  }

  void WritePage() {
    const absl::StatusOr<bool> more = Contain([&]() -> absl::StatusOr<bool> { return pages_->Next(&page_); });
    if (!more.ok() || !*more) return Finish(ToGrpc(more.status()));
    written_ = service_.machine().clock.Monotonic();
    StartWrite(&page_);
  }

  AggregationService& service_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Canceller> canceller_;
  Credit held_;    // for the stream itself
  Credit credit_;  // for the page
  uint64_t page_bytes_ = 0;
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
  const auto work = [this, request, response]() -> absl::Status {
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
  };
  return PageReactor::Start(machine_, context, PageBytes(request->page_size()), work);
}

grpc::ServerWriteReactor<v1::ResultPage>* AggregationService::StreamResult(Context* context,
                                                                           const v1::StreamResultRequest* request) {
  LogCall(LogLevel::kDebug, *context, "StreamResult", request->name());
  return ResultReactor::Start(std::make_shared<ResultReactor>(this, context), request);
}

}  // namespace sparseagg::service
