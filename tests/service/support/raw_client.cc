#include "tests/service/support/raw_client.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sparseagg::service {
namespace {

// Frame types and flags of RFC 9113.
constexpr char kData = 0;
constexpr char kHeaders = 1;
constexpr char kSettings = 4;
constexpr char kWindowUpdate = 8;
constexpr char kEndStream = 1;
constexpr char kEndHeaders = 4;
constexpr uint32_t kDefaultWindow = 65535;

// Big-endian.
std::string Number(uint32_t value) {
  const uint32_t wire = htonl(value);
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

std::string Frame(char type, char flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(Number(static_cast<uint32_t>(payload.size())).substr(1), std::string({type, flags}),
                      Number(stream), payload);
}

// An HPACK literal without indexing or compression. Requires: both strings have less than 127 bytes.
std::string Header(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string({0, static_cast<char>(name.size())}), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

// Sets the window of each stream.
std::string StreamWindow(uint32_t window) { return Frame(kSettings, 0, 0, std::string({0, 4}) + Number(window)); }

std::string WidenConnection() { return Frame(kWindowUpdate, 0, 0, Number(RawClient::kWideWindow - kDefaultWindow)); }

// Returns: a descriptor that is not open if the connection fails.
OwnedFd ConnectUnix(absl::string_view path) {
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), std::min(path.size(), sizeof(to.sun_path) - 1));
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 ? std::move(fd) : OwnedFd();
}

OwnedFd ConnectTcp(absl::string_view host, const std::string& port) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* to = nullptr;
  if (getaddrinfo(std::string(host).c_str(), port.c_str(), &hints, &to) != 0) return OwnedFd();
  OwnedFd fd(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Small, and set before connecting: so the server's side has to hold most of the bytes that this client does not
  // read.
  const int receive_bytes = 4096;
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  const bool connected = connect(fd.get(), to->ai_addr, to->ai_addrlen) == 0;
  freeaddrinfo(to);
  return connected ? std::move(fd) : OwnedFd();
}

OwnedFd ConnectSocket(const std::string& address) {
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) return ConnectUnix(path);
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return OwnedFd();
  return ConnectTcp(absl::string_view(address).substr(0, colon), address.substr(colon + 1));
}

}  // namespace

RawClient::RawClient(const std::string& address, uint32_t window)
    : fd_(ConnectSocket(address)), window_(window), ok_(fd_.get() >= 0) {}

void RawClient::Call(absl::string_view method, const google::protobuf::MessageLite& request) {
  if (stream_ == 0) {
    SendBytes(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", StreamWindow(window_),
                           window_ == kWideWindow ? WidenConnection() : ""));
  }
  stream_ += stream_ == 0 ? 1 : 2;
  SendBytes(Frame(kHeaders, kEndHeaders, stream_,
                  absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"),
                               Header(":path", absl::StrCat("/sparseagg.v1.Aggregation/", method)),
                               Header(":authority", "localhost"), Header("content-type", "application/grpc"),
                               Header("te", "trailers"))));
  const std::string message = request.SerializeAsString();
  // 0: not compressed
  const std::string head = std::string(1, '\0') + Number(static_cast<uint32_t>(message.size()));
  SendBytes(Frame(kData, kEndStream, stream_, head + message));
}

void RawClient::SendBytes(absl::string_view bytes) {
  while (ok_ && !bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ok_ = sent > 0;
    if (ok_) bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void RawClient::OpenWindow() { SendBytes(StreamWindow(kWideWindow) + WidenConnection()); }

void RawClient::Drain() {
  std::array<char, 1 << 16> dropped;
  while (fd_.get() >= 0 && recv(fd_.get(), dropped.data(), dropped.size(), 0) > 0) {
  }
}

}  // namespace sparseagg::service
