#include "service/gateway/peer_stream.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
// Not beast::tcp_stream: its timeout closes the socket without a shutdown, which the second descriptor of
// ConnectionTable would not learn of, and no response could follow.
using PlainSocket = asio::ip::tcp::socket;
using TlsSocket = asio::ssl::stream<asio::ip::tcp::socket>;

constexpr std::chrono::milliseconds kCancelInterval(100);

std::vector<std::string> UrisOfCertificate(SSL* ssl) {
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
class StreamOn final : public PeerStream {
 public:
  template <typename... Args>
  StreamOn(std::shared_ptr<asio::io_context> io, std::shared_ptr<asio::ssl::context> tls, Args&&... args)
      : PeerStream(io.get()), io_(std::move(io)), tls_(std::move(tls)), stream_(std::forward<Args>(args)...) {}
  ~StreamOn() override { Close(); }

  void Handshake(Handler done) override {
    if constexpr (std::is_same_v<Stream, TlsSocket>) {
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [done = std::move(done)](const HttpError& error) { done(error, 0); });
    } else {
      done(HttpError(), 0);
    }
  }

  std::vector<std::string> CertificateNames() override {
    if constexpr (std::is_same_v<Stream, TlsSocket>) return UrisOfCertificate(stream_.native_handle());
    return {};
  }

  void ReadSome(asio::mutable_buffer into, Handler done) override {
    NoteProgress();
    stream_.async_read_some(into, std::move(done));
  }

  void ReadAll(asio::mutable_buffer into, Handler done) override {
    NoteProgress();
    asio::async_read(stream_, into, TransferAll(), std::move(done));
  }

  void ReadHeader(beast::flat_buffer* buffer, HeaderParser* parser, Handler done) override {
    NoteProgress();
    beast::http::async_read_header(stream_, *buffer, *parser, std::move(done));
  }

  void WriteAll(const std::vector<asio::const_buffer>& from, Handler done) override {
    NoteProgress();
    asio::async_write(stream_, from, TransferAll(), std::move(done));
  }

 private:
  // The completion condition of an operation. asio::transfer_all would read and write 64 KiB at a time.
  auto TransferAll() {
    return [this](const HttpError& error, size_t bytes) {
      if (bytes > 0) NoteProgress();
      return error ? size_t{0} : size_t{1} << 20;
    };
  }

  asio::ip::tcp::socket& Socket() override { return beast::get_lowest_layer(stream_); }

  const std::shared_ptr<asio::io_context> io_;  // outlives stream_
  const std::shared_ptr<asio::ssl::context> tls_;
  Stream stream_;
};

}  // namespace

absl::Duration PeerStream::SilentFor() const { return absl::FromChrono(std::chrono::steady_clock::now() - progress_); }

void PeerStream::ReadRaw(asio::mutable_buffer into, Handler done) { Socket().async_read_some(into, std::move(done)); }

void PeerStream::WatchForEnd(std::function<void()> gone) {
  Socket().async_wait(asio::ip::tcp::socket::wait_read,
                      [self = shared_from_this(), gone = std::move(gone)](const HttpError& error) {
                        if (error || !self->Socket().is_open()) return;
                        char byte;
                        if (recv(self->native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) gone();
                      });
}

void PeerStream::ExpireAfter(absl::Duration time) {
  ExpireNever();
  timer_.expires_after(absl::ToChronoNanoseconds(time));
  AwaitLimit();
}

void PeerStream::AwaitLimit() {
  timer_.async_wait([weak = weak_from_this(), limit = limit_](const HttpError& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->limit_ != limit) return;
    self->has_expired_ = true;
    self->Cancel();
    // An operation of many reads has none to cancel between two of them, so a steady sender could outlive its limit.
    self->timer_.expires_after(kCancelInterval);
    self->AwaitLimit();
  });
}

void PeerStream::ExpireNever() {
  ++limit_;
  has_expired_ = false;
  timer_.cancel();
}

bool PeerStream::HasExpired(const HttpError& error) const {
  return error == asio::error::operation_aborted && has_expired_;
}

void PeerStream::Cancel() {
  HttpError ignored;
  Socket().cancel(ignored);
}

void PeerStream::ShutdownSend() {
  NoteProgress();
  HttpError ignored;
  Socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void PeerStream::Close() {
  asio::ip::tcp::socket& socket = Socket();
  HttpError ignored;
  // ConnectionTable has a second descriptor and learns of the end by this.
  socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket.close(ignored);
  timer_.cancel();
}

std::shared_ptr<PeerStream> MakePeerStream(std::shared_ptr<asio::io_context> io, asio::ip::tcp::socket socket,
                                           std::shared_ptr<asio::ssl::context> tls) {
  if (tls == nullptr) return std::make_shared<StreamOn<PlainSocket>>(std::move(io), nullptr, std::move(socket));
  asio::ssl::context& context = *tls;
  return std::make_shared<StreamOn<TlsSocket>>(std::move(io), std::move(tls), std::move(socket), context);
}

namespace http = boost::beast::http;

namespace {

// Headers that decide what a request means. Of a second one, a proxy or a browser may have taken another.
constexpr absl::string_view kSingleHeaders[] = {"access-control-request-method",
                                                "content-encoding",
                                                "content-type",
                                                "expect",
                                                "grpc-timeout",
                                                "host",
                                                "origin",
                                                kTenantHeader};

// Errors: INVALID_ARGUMENT.
absl::Status CheckHeaders(const HttpRequest& request, bool needs_host) {
  for (const absl::string_view name : kSingleHeaders) {
    const auto count = std::count_if(request.headers.begin(), request.headers.end(),
                                     [name](const auto& field) { return field.first == name; });
    if (count > 1) return absl::InvalidArgumentError(absl::StrCat("the header '", name, "' comes ", count, " times"));
    if (count == 0 && name == "host" && needs_host) {
      return absl::InvalidArgumentError("the header 'host' is missing");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<HttpResponse> TakeHead(const HeaderParser& parser, HttpRequest* request) {
  const auto& header = parser.get();
  request->method = std::string(header.method_string());
  const absl::string_view target(header.target().data(), header.target().size());
  const size_t mark = std::min(target.find('?'), target.size());
  request->path = std::string(target.substr(0, mark));
  request->query = std::string(target.substr(std::min(mark + 1, target.size())));
  for (const auto& field : header) {
    const auto name = field.name_string();
    request->headers.emplace_back(absl::AsciiStrToLower(absl::string_view(name.data(), name.size())),
                                  std::string(field.value()));
  }
  request->body_bytes = parser.content_length().value_or(0);
  if (const absl::Status status = CheckHeaders(*request, header.version() >= 11); !status.ok()) {
    return MakeProblem(status);
  }
  if (target.size() > kMaxTargetBytes) {
    return MakeProblem(
        absl::ResourceExhaustedError(absl::StrCat("the target has more than ", kMaxTargetBytes, " bytes")), 414);
  }
  // The memory for a body is reserved before it is read.
  if (!request->Header("transfer-encoding").empty()) {
    return MakeProblem(absl::InvalidArgumentError("send Content-Length in place of Transfer-Encoding"), 411);
  }
  const absl::string_view expect = request->Header("expect");
  if (!expect.empty() && !absl::EqualsIgnoreCase(expect, "100-continue")) {
    return MakeProblem(absl::InvalidArgumentError("Expect takes only 100-continue"), 417);
  }
  return std::nullopt;
}

std::optional<HttpResponse> ExplainUnreadHead(const HttpError& error, bool has_expired) {
  if (has_expired) {
    return MakeProblem(absl::DeadlineExceededError(
                           absl::StrCat("the header was not complete within ", absl::FormatDuration(kHeaderTimeout))),
                       408);
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return MakeProblem(
        absl::ResourceExhaustedError(absl::StrCat("the header has more than ", kMaxHeaderBytes, " bytes")), 431);
  }
  const bool is_malformed = error != http::error::end_of_stream && error != http::error::partial_message &&
                            error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_malformed) return std::nullopt;
  return MakeProblem(absl::InvalidArgumentError(absl::StrCat("malformed HTTP: ", error.message())));
}

}  // namespace sparseagg::service
