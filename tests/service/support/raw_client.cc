#include "tests/service/support/raw_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace sparseagg::service {
namespace {

constexpr char kData = 0;
constexpr char kHeaders = 1;
constexpr char kSettings = 4;
constexpr char kWindowUpdate = 8;
constexpr char kEndStream = 1;
constexpr char kEndHeaders = 4;

// Big-endian.
std::string Number(uint32_t value) {
  const uint32_t wire = htonl(value);
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

std::string Frame(char type, char flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(Number(static_cast<uint32_t>(payload.size())).substr(1), std::string({type, flags}),
                      Number(stream), payload);
}

// A literal without indexing.
std::string Header(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string({0, static_cast<char>(name.size())}), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

// Of each stream.
std::string InitialWindow(uint32_t window) { return Frame(kSettings, 0, 0, std::string({0, 4}) + Number(window)); }

std::string WidenConnection() {
  constexpr uint32_t kDefaultWindow = 65535;
  return Frame(kWindowUpdate, 0, 0, Number(RawClient::kWideWindow - kDefaultWindow));
}

OwnedFd Connect(const std::string& address) {
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, path.data(), path.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << std::strerror(errno);
    return fd;
  }
  const size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* to = nullptr;
  EXPECT_EQ(getaddrinfo(std::string(host).c_str(), address.c_str() + colon + 1, &hints, &to), 0) << address;
  OwnedFd fd(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int little = 4096;  // set before connecting, so that the server's side buffers most unread bytes
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
  EXPECT_EQ(connect(fd.get(), to->ai_addr, to->ai_addrlen), 0) << std::strerror(errno);
  freeaddrinfo(to);
  return fd;
}

}  // namespace

RawClient::RawClient(const std::string& address, uint32_t window) : fd_(Connect(address)) {
  Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + InitialWindow(window));
  if (window == kWideWindow) Send(WidenConnection());
}

void RawClient::OpenWindow() { Send(InitialWindow(kWideWindow) + WidenConnection()); }

void RawClient::Call(const std::string& method, const google::protobuf::MessageLite& request) {
  const std::string message = request.SerializeAsString();
  Send(Frame(kHeaders, kEndHeaders, stream_,
             absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"),
                          Header(":path", "/sparseagg.v1.Aggregation/" + method), Header(":authority", "x"),
                          Header("content-type", "application/grpc"), Header("te", "trailers"))) +
       Frame(kData, kEndStream, stream_,
             absl::StrCat(std::string(1, 0), Number(static_cast<uint32_t>(message.size())), message)));
  stream_ += 2;
}

void RawClient::ReadToTheEnd() {
  std::array<char, 1 << 16> bytes;
  while (recv(fd_.get(), bytes.data(), bytes.size(), 0) > 0) {
  }
}

void RawClient::Send(const std::string& bytes) {
  EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

}  // namespace sparseagg::service
