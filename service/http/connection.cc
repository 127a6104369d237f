#include "service/http/connection.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/admission/memory_shares.h"
#include "service/api/call_errors.h"
#include "service/http/http_call.h"

namespace sparseagg::service {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
// Not beast::tcp_stream: its timeout closes the socket without a shutdown, which the second descriptor of
// ConnectionTable would not learn of, and no response could follow.
using PlainStream = asio::ip::tcp::socket;
using TlsStream = asio::ssl::stream<asio::ip::tcp::socket>;

// Bodies up to this size are part of a connection's own memory.
constexpr uint64_t kSmallBodyBytes = 16 << 10;
// Time in which a peer may read the response that ends its connection.
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr size_t kReadBytes = 4096;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

// asio::transfer_all would read and write 64 KiB at a time.
struct TransferAll {
  size_t operator()(const error_code& error, size_t) const { return error ? 0 : size_t{1} << 20; }
};

// Returns: the URIs of the peer's certificate, which the handshake has verified.
std::vector<std::string> CertificateNames(SSL* ssl) {
  std::vector<std::string> names;
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get_peer_certificate(ssl), &X509_free);
  if (certificate == nullptr) return names;
  auto* const found =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(found); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(found, i);
    if (name->type != GEN_URI) continue;
    const ASN1_STRING* const text = name->d.uniformResourceIdentifier;
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                       static_cast<size_t>(ASN1_STRING_length(text)));
  }
  GENERAL_NAMES_free(found);
  return names;
}

template <typename Stream>
class ConnectionOn final : public Connection {
 public:
  template <typename... Args>
  ConnectionOn(const ConnectionServices& services, std::string peer, std::shared_ptr<asio::ssl::context> tls,
               std::function<void()> on_end, Args&&... stream)
      : services_(services),
        server_(*services.server),
        io_(services.io),
        tls_(std::move(tls)),
        peer_(std::move(peer)),
        on_end_(std::move(on_end)),
        stream_(std::forward<Args>(stream)...),
        timer_(*io_) {}
  ~ConnectionOn() override {
    CloseSocket();
    on_end_();
  }

  void Start() override {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      ExpireAfter(kHeaderTimeout);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = Self()](const error_code& error) {
        if (error) return self->Close();
        self->certificate_names_ = CertificateNames(self->stream_.native_handle());
        self->ReadRequest();
      });
    } else {
      ReadRequest();
    }
  }

  void Drain() override {
    is_draining_ = true;
    if (phase_ == Phase::kIdle) Close();
  }

  void Close() override {
    if (is_closed_) return;
    is_closed_ = true;
    CloseSocket();
    body_reservation_.Release();
    if (call_ != nullptr && is_called_ && phase_ == Phase::kCall) call_->Cancel();
    // A call that has not returned is cancelled in WatchPeer; one whose response is made is freed here.
    if (phase_ != Phase::kCall) call_.reset();
  }

 private:
  enum class Phase { kIdle, kHeader, kBody, kCall, kResponse };
  using Parser = http::request_parser<http::empty_body>;

  std::shared_ptr<ConnectionOn> Self() { return std::static_pointer_cast<ConnectionOn>(shared_from_this()); }
  asio::ip::tcp::socket& Socket() { return beast::get_lowest_layer(stream_); }

  // Starts a time limit for the operations until the next call. At its end they fail, and HasExpired is true.
  void ExpireAfter(absl::Duration time) {
    ExpireNever();
    timer_.expires_after(absl::ToChronoNanoseconds(time));
    timer_.async_wait([weak = std::weak_ptr<ConnectionOn>(Self()), limit = limit_](const error_code& error) {
      const auto self = weak.lock();
      if (error || self == nullptr || self->limit_ != limit) return;
      self->has_expired_ = true;
      self->CancelOperations();
    });
  }
  void ExpireNever() {
    ++limit_;
    has_expired_ = false;
    timer_.cancel();
  }
  bool HasExpired(const error_code& error) const { return error == asio::error::operation_aborted && has_expired_; }
  void CancelOperations() {
    error_code ignored;
    Socket().cancel(ignored);
  }

  // ---- requests ----

  void ReadRequest() {
    ++number_;
    call_.reset();
    if (is_closed_) return;
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    // Checked when the method is known. Beast 1.74 takes boost::none for 0.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    if (buffer_.size() > 0) return ReadHeader();
    phase_ = Phase::kIdle;
    if (is_draining_) return Close();
    ExpireAfter(kIdleTimeout);
    stream_.async_read_some(buffer_.prepare(kReadBytes), [self = Self()](const error_code& error, size_t bytes) {
      if (error) return self->Close();
      self->buffer_.commit(bytes);
      self->ReadHeader();
    });
  }

  void ReadHeader() {
    phase_ = Phase::kHeader;
    ExpireAfter(kHeaderTimeout);
    http::async_read_header(stream_, buffer_, *parser_, [self = Self()](const error_code& error, size_t) {
      if (error) return self->RefuseHeader(error);
      self->TakeHeader();
    });
  }

  void RefuseHeader(const error_code& error) {
    request_ = HttpRequest();
    if (HasExpired(error)) {
      return RefuseAndClose(MakeProblem(absl::DeadlineExceededError(absl::StrCat("the header was not complete within ",
                                                                                 absl::FormatDuration(kHeaderTimeout))),
                                        408));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return RefuseAndClose(MakeProblem(
          absl::ResourceExhaustedError(absl::StrCat("the header has more than ", kMaxHeaderBytes, " bytes")), 431));
    }
    const bool is_malformed = error != http::error::end_of_stream && error != http::error::partial_message &&
                              error.category() == http::make_error_code(http::error::bad_method).category();
    if (!is_malformed) return Close();
    RefuseAndClose(MakeProblem(absl::InvalidArgumentError(absl::StrCat("malformed HTTP: ", error.message()))));
  }

  void TakeHeader() {
    const auto& header = parser_->get();
    keep_alive_ = header.keep_alive();
    request_ = HttpRequest();
    request_.method = std::string(header.method_string());
    const absl::string_view target(header.target().data(), header.target().size());
    const size_t mark = std::min(target.find('?'), target.size());
    request_.path = std::string(target.substr(0, mark));
    request_.query = std::string(target.substr(std::min(mark + 1, target.size())));
    for (const auto& field : header) {
      const auto name = field.name_string();
      request_.headers.emplace_back(absl::AsciiStrToLower(absl::string_view(name.data(), name.size())),
                                    std::string(field.value()));
    }
    request_.body_bytes = parser_->content_length().value_or(0);
    request_.peer = peer_;
    request_.certificate_names = certificate_names_;
    unread_body_ = request_.body_bytes > 0;
    if (target.size() > kMaxTargetBytes) {
      return RefuseAndClose(MakeProblem(
          absl::ResourceExhaustedError(absl::StrCat("the target has more than ", kMaxTargetBytes, " bytes")), 414));
    }
    // The memory for a body is reserved before it is read.
    if (!request_.Header("transfer-encoding").empty()) {
      return RefuseAndClose(
          MakeProblem(absl::InvalidArgumentError("send Content-Length in place of Transfer-Encoding"), 411));
    }
    const absl::string_view expect = request_.Header("expect");
    if (!expect.empty() && !absl::EqualsIgnoreCase(expect, "100-continue")) {
      return RefuseAndClose(MakeProblem(absl::InvalidArgumentError("Expect takes only 100-continue"), 417));
    }
    auto routed = services_.router->Route(request_);
    if (auto* const response = std::get_if<HttpResponse>(&routed)) return Respond(std::move(*response));
    TakeCall(std::get<HttpCallPlan>(std::move(routed)));
  }

  // ---- calls ----

  void TakeCall(HttpCallPlan plan) {
    phase_ = Phase::kBody;
    const uint64_t number = number_;
    const std::weak_ptr<ConnectionOn> weak = Self();
    const std::shared_ptr<asio::io_context> io = io_;
    auto respond = [self = Self(), number](HttpResponse response) {
      asio::post(*self->io_, [self, number, response = std::move(response)]() mutable {
        if (self->number_ == number) self->Respond(std::move(response));
      });
    };
    auto reclaim = [weak, io, number] {
      asio::post(*io, [weak, number] {
        if (const auto self = weak.lock(); self != nullptr && self->number_ == number) self->Reclaim();
      });
    };
    is_called_ = false;
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
    ExpireNever();
    auto granted = [self = Self(), number](InFlightReservation reservation) {
      // A copyable handler.
      auto held = std::make_shared<InFlightReservation>(std::move(reservation));
      asio::post(*self->io_, [self, number, held] {
        if (self->number_ != number || self->is_closed_) return;
        if (!*held) return self->Respond(MakeProblem(NoInFlightMemory(self->server_)));
        self->body_reservation_ = std::move(*held);
        self->ReadBody();
      });
    };
    server_.in_flight.Acquire(call_->BodyMemory(), std::move(granted), reclaim, InFlightMemory::Wait::kBounded);
  }

  void ReadBody() {
    body_ = grpc::Slice(static_cast<size_t>(request_.body_bytes));
    read_began_ = server_.clock.Monotonic();
    ExpireAfter(server_.limits.upload_timeout);
    if (!request_.Header("expect").empty() && buffer_.size() == 0) {
      return asio::async_write(stream_, asio::buffer(kContinue, sizeof(kContinue) - 1),
                               [self = Self()](const error_code& error, size_t) {
                                 if (self->phase_ != Phase::kBody) return;  // reclaimed
                                 if (error) return self->Close();
                                 self->ReadBodyBytes();
                               });
    }
    ReadBodyBytes();
  }

  void ReadBodyBytes() {
    auto* const begin = const_cast<uint8_t*>(body_.begin());  // no one else has the slice yet
    const size_t there = std::min(buffer_.size(), body_.size());
    std::copy_n(static_cast<const uint8_t*>(buffer_.data().data()), there, begin);
    buffer_.consume(there);
    if (there == body_.size()) return CallMethod();
    asio::async_read(stream_, asio::buffer(begin + there, body_.size() - there), TransferAll(),
                     [self = Self(), number = number_](const error_code& error, size_t) {
                       if (self->number_ != number || self->phase_ != Phase::kBody) return;  // reclaimed
                       if (self->HasExpired(error)) return self->RefuseSlowBody();
                       if (error) return self->Close();
                       self->CallMethod();
                     });
  }

  void RefuseSlowBody() {
    RefuseAndClose(
        MakeProblem(absl::DeadlineExceededError(absl::StrCat("the body was not complete within upload_timeout ",
                                                             absl::FormatDuration(server_.limits.upload_timeout))),
                    408));
  }

  void CallMethod() {
    phase_ = Phase::kCall;
    unread_body_ = false;
    ExpireNever();
    body_reservation_.ShrinkTo(call_->BodyMemory());
    call_->KeepBody(std::move(body_reservation_));
    const std::shared_ptr<HttpCall> call = call_;  // a response may come before the return
    call->Run(std::exchange(body_, grpc::Slice()), server_.clock.Monotonic() - read_began_,
              [self = Self(), number = number_] {
                asio::post(*self->io_, [self, number] {
                  if (self->number_ == number) self->WatchPeer();
                });
              });
  }

  // The method has returned and may wait: notices a peer that goes away.
  void WatchPeer() {
    is_called_ = true;
    if (is_closed_ && call_ != nullptr) call_->Cancel();
    if (is_closed_ || phase_ != Phase::kCall) return;
    Socket().async_wait(asio::ip::tcp::socket::wait_read, [self = Self(), number = number_](const error_code& error) {
      if (error || self->number_ != number || self->phase_ != Phase::kCall) return;
      char byte;
      const auto bytes = recv(self->Socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (bytes == 0) self->Close();  // else the next request has come
    });
  }

  // Other calls need the memory of this one, whose peer is slow.
  void Reclaim() {
    if (phase_ != Phase::kBody || is_closed_) return Close();
    body_reservation_.Release();
    CancelOperations();
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
    keep_alive_ = keep_alive_ && !unread_body_ && !is_draining_;
    services_.router->AddHeaders(request_, &response);
    if (!keep_alive_) response.headers.emplace_back("Connection", "close");
    uint64_t size = 0;
    for (const std::string& piece : response.body) size += piece.size();
    if (response.status != 204) response.headers.emplace_back("Content-Length", absl::StrCat(size));
    const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
    head_ = absl::StrCat("HTTP/1.1 ", response.status, " ", absl::string_view(reason.data(), reason.size()), "\r\n");
    for (const auto& [name, value] : response.headers) absl::StrAppend(&head_, name, ": ", value, "\r\n");
    head_ += "\r\n";
    response_body_ = request_.method == "HEAD" ? std::vector<std::string>() : std::move(response.body);
    std::vector<asio::const_buffer> buffers = {asio::buffer(head_)};
    for (const std::string& piece : response_body_) buffers.push_back(asio::buffer(piece));
    ExpireAfter(kWriteTimeout);
    asio::async_write(stream_, buffers, TransferAll(), [self = Self()](const error_code& error, size_t) {
      self->response_body_.clear();
      self->body_ = grpc::Slice();
      if (error) return self->Close();
      if (self->keep_alive_) return self->ReadRequest();
      self->Linger();
    });
  }

  // Ends the connection in order: a peer that is still sending would otherwise lose the response.
  void Linger() {
    ++number_;
    call_.reset();
    error_code ignored;
    Socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    ExpireAfter(kLingerTime);
    Discard();
  }

  void Discard() {
    buffer_.consume(buffer_.size());
    Socket().async_read_some(buffer_.prepare(kReadBytes), [self = Self()](const error_code& error, size_t) {
      error ? self->Close() : self->Discard();
    });
  }

  void CloseSocket() {
    error_code ignored;
    // ConnectionTable has a second descriptor and learns of the end by this.
    Socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    Socket().close(ignored);
    timer_.cancel();
  }

  const ConnectionServices services_;
  ServerContext& server_;
  const std::shared_ptr<asio::io_context> io_;  // outlives stream_
  const std::shared_ptr<asio::ssl::context> tls_;
  const std::string peer_;
  const std::function<void()> on_end_;
  std::vector<std::string> certificate_names_;
  Stream stream_;
  asio::steady_timer timer_;
  uint64_t limit_ = 0;  // counts the time limits
  bool has_expired_ = false;
  beast::flat_buffer buffer_{2 * kMaxHeaderBytes};
  std::optional<Parser> parser_;

  Phase phase_ = Phase::kIdle;
  bool is_draining_ = false;
  bool is_closed_ = false;
  uint64_t number_ = 0;  // of the request
  HttpRequest request_;
  bool keep_alive_ = false;
  bool unread_body_ = false;  // of the request
  bool is_called_ = false;    // the method has returned
  std::shared_ptr<HttpCall> call_;
  InFlightReservation body_reservation_;
  grpc::Slice body_;
  absl::Duration read_began_ = absl::ZeroDuration();  // Clock::Monotonic
  std::string head_;
  std::vector<std::string> response_body_;
};

}  // namespace

std::shared_ptr<Connection> MakeConnection(const ConnectionServices& services, asio::ip::tcp::socket socket,
                                           std::string peer, std::shared_ptr<asio::ssl::context> tls,
                                           std::function<void()> on_end) {
  if (tls == nullptr) {
    return std::make_shared<ConnectionOn<PlainStream>>(services, std::move(peer), nullptr, std::move(on_end),
                                                       std::move(socket));
  }
  asio::ssl::context& context = *tls;
  return std::make_shared<ConnectionOn<TlsStream>>(services, std::move(peer), std::move(tls), std::move(on_end),
                                                   std::move(socket), context);
}

}  // namespace sparseagg::service
