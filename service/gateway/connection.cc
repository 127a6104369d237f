#include "service/gateway/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "service/admission/memory_shares.h"
#include "service/base/refusals.h"
#include "service/gateway/http_call.h"
#include "service/gateway/peer_stream.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

namespace asio = boost::asio;

// Bodies up to this size are part of a connection's own memory.
constexpr uint64_t kSmallBodyBytes = 16 << 10;
// Time in which a peer may read the response that ends its connection.
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr size_t kReadBytes = 4096;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

class HttpConnection final : public Connection {
 public:
  HttpConnection(const ConnectionServices& services, std::shared_ptr<PeerStream> stream, std::string peer,
                 std::function<void()> on_end)
      : services_(services),
        server_(*services.server),
        stream_(std::move(stream)),
        peer_(std::move(peer)),
        on_end_(std::move(on_end)) {}
  ~HttpConnection() override {
    stream_->Close();
    on_end_();
  }

  void Start() override {
    SetIdleness(Idleness::kUnused);
    stream_->ExpireAfter(kHeaderTimeout);
    stream_->Handshake([self = Self()](const HttpError& error, size_t) {
      if (error || self->is_closed_) return self->Close();
      self->certificate_names_ = self->stream_->CertificateNames();
      self->ReadRequest();
    });
  }

  void Drain() override {
    is_draining_ = true;
    const bool waits_for_peer = phase_ == Phase::kHeader || phase_ == Phase::kBody || phase_ == Phase::kResponse;
    if (phase_ == Phase::kIdle || (waits_for_peer && stream_->SilentFor() >= kDrainSilence)) Close();
  }

  void Close() override {
    if (is_closed_) return;
    is_closed_ = true;
    timeout_.reset();
    stream_->Close();
    body_reservation_.Release();
    if (phase_ == Phase::kMemory || phase_ == Phase::kBody || phase_ == Phase::kCall) CountExchange();
    if (call_ != nullptr && is_called_ && phase_ == Phase::kCall) call_->Cancel();
    // A call that has not returned is cancelled in WatchPeer; one whose response is made is freed here.
    if (phase_ != Phase::kCall) call_.reset();
  }

 private:
  // kMemory: waits for the memory of the body. kResponse: also until the peer has read the last response.
  enum class Phase { kIdle, kHeader, kMemory, kBody, kCall, kResponse };

  std::shared_ptr<HttpConnection> Self() { return std::static_pointer_cast<HttpConnection>(shared_from_this()); }

  bool IsReadingBody() const { return !is_closed_ && phase_ == Phase::kBody; }

  void SetIdleness(std::optional<Idleness> idleness) { services_.table->SetIdleness(peer_, idleness); }

  // ---- requests ----

  void ReadRequest() {
    ++number_;
    call_.reset();
    if (is_closed_) return;
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    // Checked when the method is known. Beast 1.74 takes boost::none for 0.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    SetIdleness(number_ > 1 ? Idleness::kUsed : Idleness::kUnused);
    if (buffer_.size() > 0) return ReadHeader();
    phase_ = Phase::kIdle;
    if (is_draining_) return Close();
    stream_->ExpireAfter(kIdleTimeout);
    stream_->ReadSome(buffer_.prepare(kReadBytes), [self = Self()](const HttpError& error, size_t bytes) {
      if (error || self->is_closed_) return self->Close();
      self->buffer_.commit(bytes);
      self->ReadHeader();
    });
  }

  void ReadHeader() {
    phase_ = Phase::kHeader;
    stream_->ExpireAfter(kHeaderTimeout);
    stream_->ReadHeader(&buffer_, &*parser_, [self = Self()](const HttpError& error, size_t) {
      if (self->is_closed_) return;  // meanwhile, though the head was read
      error ? self->RefuseHead(error) : self->TakeRequest();
    });
  }

  void RefuseHead(const HttpError& error) {
    request_ = HttpRequest();
    BeginExchange();
    auto refusal = ExplainUnreadHead(error, stream_->HasExpired(error));
    if (!refusal.has_value()) return Close();
    RefuseAndClose(*std::move(refusal));
  }

  void TakeRequest() {
    keep_alive_ = parser_->get().keep_alive();
    request_ = HttpRequest();
    auto refusal = TakeHead(*parser_, &request_);
    request_.peer = peer_;
    request_.certificate_names = certificate_names_;
    unread_body_ = request_.body_bytes > 0;
    BeginExchange();
    if (refusal.has_value()) return RefuseAndClose(*std::move(refusal));
    RoutedRequest routed = services_.router->Route(request_);
    exchange_.route = std::move(routed.route);
    if (auto* const response = std::get_if<HttpResponse>(&routed.outcome)) return Respond(std::move(*response));
    TakeCall(std::get<HttpCallPlan>(std::move(routed.outcome)));
  }

  // Starts the metrics of a request, also of one with a malformed head.
  void BeginExchange() {
    SetIdleness(std::nullopt);
    exchange_ = HttpExchange();
    exchange_.method = std::string(KnownMethod(request_.method));
    exchange_began_ = server_.clock.Monotonic();
  }

  void CountExchange() {
    if (services_.api == nullptr) return;
    exchange_.time = server_.clock.Monotonic() - exchange_began_;
    server_.metrics.CountHttp(exchange_);
  }

  // ---- calls ----

  void TakeCall(HttpCallPlan plan) {
    phase_ = Phase::kMemory;
    const uint64_t number = number_;
    const std::weak_ptr<HttpConnection> weak = Self();
    const std::shared_ptr<asio::io_context> io = services_.io;
    auto respond = [self = Self(), number](HttpResponse response) {
      asio::post(*self->services_.io, [self, number, response = std::move(response)]() mutable {
        if (self->number_ == number) self->Respond(std::move(response));
      });
    };
    auto reclaim = [weak, io, number] {
      asio::post(*io, [weak, number] {
        if (const auto self = weak.lock(); self != nullptr && self->number_ == number) self->Reclaim();
      });
    };
    is_called_ = false;
    StartTimeout(plan.timeout);
    call_ = std::make_shared<HttpCall>(&server_, services_.api, request_, std::move(plan), services_.begin_call(),
                                       std::move(respond), reclaim);
    if (const absl::Status admitted = call_->AdmitToMethod(); !admitted.ok()) return Respond(MakeProblem(admitted));
    const uint64_t most = MaxBufferedMessageBytes(server_.limits);
    if (request_.body_bytes > most) {
      return Respond(MakeProblem(
          absl::ResourceExhaustedError(absl::StrCat("a body of ", request_.body_bytes,
                                                    " bytes exceeds the server's max_message_bytes ",
                                                    server_.limits.max_message_bytes, "; send smaller chunks")),
          413));
    }
    if (request_.body_bytes <= kSmallBodyBytes) return ReadBody();
    stream_->ExpireNever();
    auto granted = [self = Self(), number](InFlightReservation reservation) {
      // A copyable handler.
      auto held = std::make_shared<InFlightReservation>(std::move(reservation));
      asio::post(*self->services_.io, [self, number, held] {
        if (self->number_ != number || self->is_closed_ || self->phase_ != Phase::kMemory) return;
        if (!*held) return self->Respond(MakeProblem(NoInFlightMemory(self->server_)));
        self->body_reservation_ = std::move(*held);
        self->ReadBody();
      });
    };
    server_.in_flight.Acquire(call_->BodyMemory(), std::move(granted), reclaim, InFlightMemory::Wait::kBounded, peer_);
  }

  // The time of a call of gRPC-Web, the transfer of its body included.
  void StartTimeout(absl::Duration timeout) {
    is_late_ = false;
    if (timeout == absl::InfiniteDuration()) return;
    timeout_.emplace(*services_.io);
    timeout_->expires_after(absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 366))));
    timeout_->async_wait([self = Self(), number = number_](const HttpError& error) {
      if (!error && self->number_ == number && !self->is_closed_) self->EndLateCall();
    });
  }

  void EndLateCall() {
    is_late_ = true;
    if (phase_ == Phase::kMemory || phase_ == Phase::kBody) {
      stream_->Cancel();
      body_reservation_.Release();
      return RefuseAndClose(call_->MakeLateResponse());
    }
    if (phase_ != Phase::kCall) return;
    call_->SetLate();
    if (is_called_) call_->Cancel();  // else WatchPeer
  }

  void ReadBody() {
    phase_ = Phase::kBody;
    body_ = Column<char>(static_cast<size_t>(request_.body_bytes));
    read_began_ = server_.clock.Monotonic();
    SetIdleness(Idleness::kExchange);
    stream_->ExpireAfter(server_.limits.upload_timeout);
    if (!request_.Header("expect").empty() && buffer_.size() == 0) {
      return stream_->WriteAll({asio::buffer(kContinue, sizeof(kContinue) - 1)},
                               [self = Self()](const HttpError& error, size_t) {
                                 if (!self->IsReadingBody()) return;  // reclaimed
                                 if (error) return self->Close();
                                 self->ReadBodyBytes();
                               });
    }
    ReadBodyBytes();
  }

  void ReadBodyBytes() {
    const size_t there = std::min(buffer_.size(), body_.size());
    std::copy_n(static_cast<const char*>(buffer_.data().data()), there, body_.data());
    buffer_.consume(there);
    exchange_.received_body_bytes = there;
    if (there == body_.size()) return CallMethod();
    stream_->ReadAll(asio::buffer(body_.data() + there, body_.size() - there),
                     [self = Self(), number = number_](const HttpError& error, size_t bytes) {
                       if (self->number_ == number) self->exchange_.received_body_bytes += bytes;
                       if (self->number_ != number || !self->IsReadingBody()) return;  // reclaimed
                       if (self->stream_->HasExpired(error)) return self->RefuseSlowBody();
                       if (error) return self->Close();
                       self->CallMethod();
                     });
  }

  void RefuseSlowBody() {
    const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "the body was not complete within upload_timeout ", absl::FormatDuration(server_.limits.upload_timeout)));
    RefuseAndClose(MakeProblem(WithReason(status, "UPLOAD_TIMED_OUT"), 408));
  }

  void CallMethod() {
    phase_ = Phase::kCall;
    SetIdleness(std::nullopt);
    unread_body_ = false;
    stream_->ExpireNever();
    body_reservation_.ShrinkTo(call_->BodyMemory());
    call_->KeepBody(std::move(body_reservation_));
    const std::shared_ptr<HttpCall> call = call_;  // a response may come before the return
    const absl::string_view bytes(body_.data(), body_.size());
    call->Run(absl::MakeCordFromExternal(bytes, [body = std::move(body_)] {}), server_.clock.Monotonic() - read_began_,
              [self = Self(), number = number_] {
                asio::post(*self->services_.io, [self, number] {
                  if (self->number_ == number) self->WatchPeer();
                });
              });
  }

  // The method has returned and may wait: notices a peer that goes away.
  void WatchPeer() {
    is_called_ = true;
    if ((is_closed_ || is_late_) && call_ != nullptr) call_->Cancel();
    if (is_closed_ || phase_ != Phase::kCall) return;
    if (call_->IsLongPoll()) SetIdleness(Idleness::kExchange);
    stream_->WatchForEnd([self = Self(), number = number_] {
      if (self->number_ == number && self->phase_ == Phase::kCall) self->Close();
    });
  }

  // Other calls need the memory of this one, whose peer is slow.
  void Reclaim() {
    if (!IsReadingBody()) return Close();
    body_reservation_.Release();
    stream_->Cancel();
    RefuseAndClose(MakeProblem(ReclaimedError(server_)));
  }

  // ---- responses ----

  // The rest of what the peer sends cannot be read as a request.
  void RefuseAndClose(HttpResponse response) {
    keep_alive_ = false;
    Respond(std::move(response));
  }

  void Respond(HttpResponse response) {
    if (is_closed_) return call_.reset();
    phase_ = Phase::kResponse;
    timeout_.reset();
    SetIdleness(std::nullopt);
    keep_alive_ = keep_alive_ && !unread_body_ && !is_draining_;
    services_.router->AddHeaders(request_, &response);
    if (!keep_alive_) response.headers.emplace_back("Connection", "close");
    uint64_t size = 0;
    for (const std::string& piece : response.body) size += piece.size();
    if (response.status != 204) response.headers.emplace_back("Content-Length", absl::StrCat(size));
    exchange_.status = response.status;
    head_ = SerializeHead(response);
    response_body_ = request_.method == "HEAD" ? std::vector<std::string>() : std::move(response.body);
    std::vector<asio::const_buffer> buffers = {asio::buffer(head_)};
    for (const std::string& piece : response_body_) buffers.push_back(asio::buffer(piece));
    stream_->ExpireAfter(kWriteTimeout);
    SetIdleness(Idleness::kExchange);
    stream_->WriteAll(buffers, [self = Self()](const HttpError& error, size_t bytes) {
      self->exchange_.sent_body_bytes = bytes - std::min(bytes, self->head_.size());
      self->CountExchange();
      self->response_body_.clear();
      self->body_ = {};
      if (error) return self->Close();
      if (self->keep_alive_) return self->ReadRequest();
      self->Linger();
    });
  }

  // Ends the connection in order: a peer that is still sending would otherwise lose the response.
  void Linger() {
    ++number_;
    call_.reset();
    SetIdleness(Idleness::kUnused);
    stream_->ShutdownSend();
    stream_->ExpireAfter(kLingerTime);
    Discard();
  }

  void Discard() {
    buffer_.consume(buffer_.size());
    stream_->ReadRaw(buffer_.prepare(kReadBytes),
                     [self = Self()](const HttpError& error, size_t) { error ? self->Close() : self->Discard(); });
  }

  const ConnectionServices services_;
  ServerContext& server_;
  const std::shared_ptr<PeerStream> stream_;
  const std::string peer_;
  const std::function<void()> on_end_;
  std::vector<std::string> certificate_names_;
  boost::beast::flat_buffer buffer_{2 * kMaxHeaderBytes};
  std::optional<HeaderParser> parser_;

  Phase phase_ = Phase::kIdle;
  bool is_draining_ = false;
  bool is_closed_ = false;
  uint64_t number_ = 0;  // of the request
  HttpRequest request_;
  HttpExchange exchange_;                                 // of the request
  absl::Duration exchange_began_ = absl::ZeroDuration();  // Clock::Monotonic
  bool keep_alive_ = false;
  bool unread_body_ = false;  // of the request
  bool is_called_ = false;    // the method has returned
  bool is_late_ = false;      // its timeout is over
  std::optional<asio::steady_timer> timeout_;
  std::shared_ptr<HttpCall> call_;
  InFlightReservation body_reservation_;
  Column<char> body_;                                 // of the request, while it is read
  absl::Duration read_began_ = absl::ZeroDuration();  // Clock::Monotonic
  std::string head_;
  std::vector<std::string> response_body_;
};

}  // namespace

std::shared_ptr<Connection> MakeConnection(const ConnectionServices& services, std::shared_ptr<PeerStream> stream,
                                           std::string peer, std::function<void()> on_end) {
  return std::make_shared<HttpConnection>(services, std::move(stream), std::move(peer), std::move(on_end));
}

}  // namespace sparseagg::service
