// The socket of an HTTP connection, plain or with TLS, with a time limit.
#ifndef SPARSEAGG_SERVICE_GATEWAY_PEER_STREAM_H_
#define SPARSEAGG_SERVICE_GATEWAY_PEER_STREAM_H_

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

using HttpError = boost::beast::error_code;
using HeaderParser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

// Asynchronous operations on a connected socket. A handler runs on a thread of the socket's io_context, once, and not
// before its operation has returned, except that of Handshake. The memory of a buffer must live until then.
//
// Owned by the connection and by the handlers, which must keep it alive. Not thread-safe: for the gateway's thread. The
// destructor closes the socket.
class PeerStream : public std::enable_shared_from_this<PeerStream> {
 public:
  // `bytes`: how many were read or written, also with an error.
  using Handler = std::function<void(const HttpError& error, size_t bytes)>;

  virtual ~PeerStream() = default;

  // The handshake of TLS; on a plain socket, `done` runs at once.
  virtual void Handshake(Handler done) = 0;
  // Returns: the URIs of the peer's certificate, which the handshake has verified.
  virtual std::vector<std::string> CertificateNames() = 0;
  virtual void ReadSome(boost::asio::mutable_buffer into, Handler done) = 0;
  // Fills all of `into`.
  virtual void ReadAll(boost::asio::mutable_buffer into, Handler done) = 0;
  virtual void ReadHeader(boost::beast::flat_buffer* buffer, HeaderParser* parser, Handler done) = 0;
  virtual void WriteAll(const std::vector<boost::asio::const_buffer>& from, Handler done) = 0;

  // Reads bytes of the socket, beneath TLS.
  void ReadRaw(boost::asio::mutable_buffer into, Handler done);
  // Waits until the peer sends something or goes away, and calls `gone` in the second case only.
  void WatchForEnd(std::function<void()> gone);

  // Starts a time limit for the operations until the next call. At its end they fail, and HasExpired is true.
  void ExpireAfter(absl::Duration time);
  void ExpireNever();
  bool HasExpired(const HttpError& error) const;
  // The operations under way fail.
  void Cancel();
  // Returns: how long no byte was sent or received, by the latest operation or since it began. Bytes of a head and of a
  // handshake do not count.
  absl::Duration SilentFor() const;

  // Tells the peer that nothing more comes; reading goes on.
  void ShutdownSend();
  void Close();
  // Of the socket; for shutdown() only.
  int native_handle() { return Socket().native_handle(); }

 protected:
  explicit PeerStream(boost::asio::io_context* io) : timer_(*io) {}
  // An operation begins, or has sent or received bytes.
  void NoteProgress() { progress_ = std::chrono::steady_clock::now(); }

 private:
  void AwaitLimit();
  virtual boost::asio::ip::tcp::socket& Socket() = 0;

  boost::asio::steady_timer timer_;
  uint64_t limit_ = 0;  // counts the time limits
  bool has_expired_ = false;
  std::chrono::steady_clock::time_point progress_ = std::chrono::steady_clock::now();
};

// `tls` null: plain HTTP.
std::shared_ptr<PeerStream> MakePeerStream(std::shared_ptr<boost::asio::io_context> io,
                                           boost::asio::ip::tcp::socket socket,
                                           std::shared_ptr<boost::asio::ssl::context> tls);

// Limits of a head. A longer one gets 431, a late one 408, a longer target 414.
inline constexpr size_t kMaxHeaderBytes = 16 << 10;
inline constexpr size_t kMaxTargetBytes = 8 << 10;
inline constexpr absl::Duration kHeaderTimeout = absl::Seconds(10);

// Sets all of `request` that the head says. Returns: the response to a head that breaks a limit; nullopt for others.
std::optional<HttpResponse> TakeHead(const HeaderParser& parser, HttpRequest* request);

// Returns: the response to a head that was not read, for `error`; nullopt if the peer has gone.
std::optional<HttpResponse> ExplainUnreadHead(const HttpError& error, bool has_expired);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_PEER_STREAM_H_
