// Where pages are served, and that who says nothing keeps nobody from them.
#include "service/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "service/net/listener.h"
#include "tests/service/support/localhost.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

HttpPages Pages() {
  return {{"/healthz", [] { return HttpPage{200, "ok\n"}; }}};
}

absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address) {
  return HttpServer::Start(address, Pages());
}

OwnedFd Connect(const HttpServer& server) {
  const std::string& address = server.address();
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// Sends a GET. Returns: the whole answer within `seconds`.
std::string Get(const OwnedFd& fd, int seconds, const std::string& path = "/healthz") {
  const timeval limit{seconds, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  for (char c; read(fd.get(), &c, 1) == 1;) answer += c;
  return answer;
}

TEST(HttpServerTest, Probe_AmongAHundredSilentConnections_IsAnswered) {
  const auto server = Start("127.0.0.1:0");
  ASSERT_THAT(server, IsOk());
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect(**server));
  // Four threads with a timeout of five seconds each would take two minutes.
  EXPECT_THAT(Get(Connect(**server), 20), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("ok\n")));
}

TEST(HttpServerTest, Path_IsServedOnlyWhole) {
  const auto server = Start("127.0.0.1:0");
  ASSERT_THAT(server, IsOk());
  EXPECT_THAT(Get(Connect(**server), 20, "/healthz?x=1"), StartsWith("HTTP/1.1 200"));
  for (const char* path : {"/healthzz", "/healthz/x", "/health", "/"}) {
    EXPECT_THAT(Get(Connect(**server), 20, path), StartsWith("HTTP/1.1 404")) << path;
  }
}

TEST(HttpServerTest, Address_HostAndPort_IsServed) {
  for (const std::string address : {"127.0.0.1:0", "localhost:0"}) {
    if (address == "localhost:0" && !KnowsLocalhost()) continue;
    const auto server = Start(address);
    ASSERT_THAT(server, IsOk()) << address;
    EXPECT_THAT(Get(Connect(**server), 20), StartsWith("HTTP/1.1 200")) << address;
  }
  // IPv6 depends on the machine and on the build of CivetWeb.
  EXPECT_NE(Start("[::1]:0").status().code(), Code::kInvalidArgument);
}

// CivetWeb takes some of these for lists of ports, or for ports with TLS.
TEST(HttpServerTest, Address_ThatIsNoHostAndPort_IsRefused) {
  for (const char* address : {"127.0.0.1:0,0",
                              "127.0.0.1:0,127.0.0.1:0",
                              "0,127.0.0.1:0",
                              "127.0.0.1:0s",
                              "127.0.0.1:0r",
                              "127.0.0.1:0o",
                              "127.0.0.1:0x",
                              "127.0.0.1:+0",
                              "127.0.0.1: 0",
                              "127.0.0.1:0 ",
                              " 127.0.0.1:0",
                              "127.0.0.1:65536",
                              "127.0.0.1:18446744073709551616",
                              "127.0.0.1:",
                              "127.0.0.1",
                              "0",
                              "+0",
                              ":0",
                              "",
                              "[::1]",
                              "[::1:0",
                              "::1:0",
                              "[127.0.0.1]:0",
                              "[]:0",
                              "[::1]0:0",
                              "unix:/tmp/x:0",
                              "http://127.0.0.1:0"}) {
    EXPECT_THAT(Start(address).status(),
                Fails(Code::kInvalidArgument, HasSubstr(absl::StrCat("'", address, "' is not HOST:PORT"))))
        << address;
  }
}

}  // namespace
}  // namespace sparseagg::service
