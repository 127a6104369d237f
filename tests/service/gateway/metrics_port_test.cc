// The port of metrics and probes, which a hundred silent connections do not block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/tcp_pair.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

class MetricsPortTest : public ServerFixture {
 protected:
  MetricsPortTest() { options_.metrics_address = "127.0.0.1:0"; }

  absl::Status StartAt(const std::string& address) {
    options_.metrics_address = address;
    return Server::Start(options_, CreateCpuEngine()).status();
  }

  OwnedFd Connect() {
    const std::string address = server().metrics_address();
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
};

// Sends a GET. Returns: the whole answer within `seconds`.
std::string Get(const OwnedFd& fd, int seconds, const std::string& path = "/healthz") {
  const timeval limit{seconds, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  for (char c; read(fd.get(), &c, 1) == 1;) answer += c;
  return answer;
}

TEST_F(MetricsPortTest, Probe_AmongAHundredSilentConnections_IsAnswered) {
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  // A silent connection would last for ten seconds.
  EXPECT_THAT(Get(Connect(), 20), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("ok\n")));
}

TEST_F(MetricsPortTest, Path_IsServedOnlyWhole_AndNoneOfTheGateway) {
  EXPECT_THAT(Get(Connect(), 20, "/healthz?x=1"), StartsWith("HTTP/1.1 200"));
  for (const char* path :
       {"/healthzz", "/healthz/x", "/health", "/", "/health/live", "/v1/rounds", "/v1/openapi.json"}) {
    EXPECT_THAT(Get(Connect(), 20, path), StartsWith("HTTP/1.1 404")) << path;
  }
}

TEST_F(MetricsPortTest, Address_HostAndPort_IsServed) {
  if (KnowsLocalhost()) {
    EXPECT_THAT(StartAt("localhost:0"), IsOk());
  }
  // IPv6 depends on the machine.
  EXPECT_NE(StartAt("[::1]:0").code(), Code::kInvalidArgument);
}

TEST_F(MetricsPortTest, Address_ThatIsNoHostAndPort_IsRefused) {
  for (const char* address : {"127.0.0.1:0,0",
                              "127.0.0.1:0,127.0.0.1:0",
                              "0,127.0.0.1:0",
                              "127.0.0.1:0s",
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
                              "[::1]",
                              "[::1:0",
                              "[]:0",
                              "[::1]0:0",
                              "unix:/tmp/x:0",
                              "http://127.0.0.1:0"}) {
    EXPECT_THAT(StartAt(address), Fails(Code::kInvalidArgument, HasSubstr(address))) << address;
  }
}

}  // namespace
}  // namespace sparseagg::service
