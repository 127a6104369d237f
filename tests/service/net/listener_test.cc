#include "service/net/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "service/net/address.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/tcp_pair.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Throws: absl::BadStatusOrAccess, with the reason.
std::unique_ptr<Listener> MustOpen(const std::string& address) { return Listener::Open(address).value(); }

OwnedFd Connect(int family, const void* address, socklen_t size) {
  OwnedFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), static_cast<const sockaddr*>(address), size) != 0) fd.Reset();
  return fd;
}

uint16_t PortOf(const Listener& listener) {
  const std::string& address = listener.address();
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return static_cast<uint16_t>(port);
}

sockaddr_in LoopbackOf(const Listener& listener) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(PortOf(listener));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return to;
}

OwnedFd ConnectTo(const Listener& listener) {
  const sockaddr_in to = LoopbackOf(listener);
  return Connect(AF_INET, &to, sizeof(to));
}

OwnedFd ConnectToV6(const Listener& listener) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(PortOf(listener));
  to.sin6_addr = in6addr_loopback;
  return Connect(AF_INET6, &to, sizeof(to));
}

OwnedFd ConnectToUnix(const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), path.size());
  return Connect(AF_UNIX, &to, sizeof(to));
}

// Does not listen.
OwnedFd BindUnix(const std::string& path) {
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Keeps what it is given, and tells the other side with a byte.
class Keeper {
 public:
  void Start(Listener& listener, ConnectionLimits limits = {}) {
    const auto take = [this](int fd, const std::string&) {
      const std::lock_guard lock(mutex_);
      kept_.emplace_back(fd);
      (void)send(fd, "t", 1, MSG_NOSIGNAL);  // who only looks whether a server listens has gone by now
    };
    listener.Start(limits, /*tls=*/false, &connections_, take, [this](const char*) { ++refused_; });
  }
  void CloseOne() {
    const std::lock_guard lock(mutex_);
    shutdown(kept_.front().get(), SHUT_RDWR);
    kept_.erase(kept_.begin());
  }
  // The socket that was accepted last.
  int last() {
    const std::lock_guard lock(mutex_);
    return kept_.back().get();
  }
  int refused() const { return refused_; }
  ConnectionTable& connections() { return connections_; }
  void Advance(absl::Duration time) { clock_.Advance(time, timer_); }

 private:
  ManualClock clock_;
  Timer timer_{&clock_};
  ConnectionTable connections_{&clock_};
  std::mutex mutex_;
  std::vector<OwnedFd> kept_;
  std::atomic<int> refused_ = 0;
};

enum class Answer { kTaken, kReset, kOther };

Answer AnswerOf(const OwnedFd& fd) {
  const timeval long_enough{20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &long_enough, sizeof(long_enough));
  char byte = 0;
  const ssize_t got = read(fd.get(), &byte, 1);
  if (got == 1) return Answer::kTaken;
  return got < 0 && errno == ECONNRESET ? Answer::kReset : Answer::kOther;
}

Answer ConnectAndAsk(const OwnedFd& client, const sockaddr_in& to) {
  if (connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return AnswerOf(client);
  return errno == ECONNRESET ? Answer::kReset : Answer::kOther;  // it may come before connect() returns
}

TEST(ListenerTest, PortZero_IsTheOneThatWasFound) {
  Keeper keeper;
  const auto listener = MustOpen("127.0.0.1:0");
  EXPECT_THAT(listener->address(), ::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  keeper.Start(*listener);
  EXPECT_EQ(AnswerOf(ConnectTo(*listener)), Answer::kTaken);
}

TEST(ListenerTest, Tcp_EndsByItselfWherePeersTakeNothing) {
  ConnectionTable connections(&SystemClock());
  const auto listener = MustOpen("127.0.0.1:0");
  std::atomic<unsigned int> timeout_ms = 0;
  const auto take = [&](int fd, const std::string&) {
    const OwnedFd taken(fd);
    unsigned int found = 0;
    socklen_t size = sizeof(found);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &found, &size), 0);
    timeout_ms = found;
    (void)send(fd, "t", 1, MSG_NOSIGNAL);
  };
  listener->Start({}, /*tls=*/false, &connections, take, [](const char*) {});
  EXPECT_EQ(AnswerOf(ConnectTo(*listener)), Answer::kTaken);
  EXPECT_EQ(timeout_ms, 20'000);
}

TEST(ListenerTest, Localhost_IsEveryAddressThatItStandsFor) {
  if (!KnowsLocalhost()) GTEST_SKIP() << "this machine has no address of localhost";
  const bool has_v6 = Listener::Open("[::1]:0").ok();
  Keeper keeper;
  const auto listener = MustOpen("localhost:0");
  keeper.Start(*listener);
  EXPECT_EQ(AnswerOf(ConnectTo(*listener)), Answer::kTaken);
  const OwnedFd v6 = ConnectToV6(*listener);
  if (has_v6 && v6.get() >= 0) {  // not everywhere is ::1 called so
    EXPECT_EQ(AnswerOf(v6), Answer::kTaken);
  }
}

TEST(ListenerTest, UnixPath_ReplacesASocketThatWasLeft_AndGoesAtTheEnd) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/listener_test.", getpid());
  for (const char* prefix : {"unix:", "unix://"}) {
    BindUnix(path);
    Keeper keeper;
    const auto listener = MustOpen(prefix + path);
    EXPECT_EQ(listener->address(), prefix + path);
    keeper.Start(*listener);
    EXPECT_EQ(AnswerOf(ConnectToUnix(path)), Answer::kTaken);
    listener->Stop();
    struct stat gone {};
    EXPECT_NE(lstat(path.c_str(), &gone), 0);
  }
}

TEST(ListenerTest, UnixPath_WhereAServerListens_IsRefused_AndThatOneStays) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/listener_test.", getpid());
  Keeper keeper;
  const auto first = MustOpen("unix:" + path);
  const auto second = Listener::Open("unix:" + path);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(path), HasSubstr("another server listens there")));
  keeper.Start(*first);
  EXPECT_EQ(AnswerOf(ConnectToUnix(path)), Answer::kTaken);
}

TEST(ListenerTest, UnixPath_OfAServerThatIsTooBusyToAccept_IsRefused) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/listener_test.", getpid());
  const OwnedFd busy = BindUnix(path);
  ASSERT_EQ(listen(busy.get(), 0), 0);
  const OwnedFd waiting = ConnectToUnix(path);  // all that its queue has room for
  ASSERT_GE(waiting.get(), 0);
  const auto second = Listener::Open("unix:" + path);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server listens there"));
  unlink(path.c_str());
}

TEST(ListenerTest, UnixPath_ThatIsAnothersByNow_StaysAtTheEnd) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/listener_test.", getpid());
  const auto first = MustOpen("unix:" + path);
  ASSERT_EQ(unlink(path.c_str()), 0);
  Keeper keeper;
  const auto second = MustOpen("unix:" + path);
  first->Stop();
  keeper.Start(*second);
  EXPECT_EQ(AnswerOf(ConnectToUnix(path)), Answer::kTaken);
}

TEST(ListenerTest, InvalidAddresses_AreErrorsWithTheReason) {
  const std::pair<std::string, std::string> cases[] = {
      {"nonsense", "'nonsense' is neither HOST:PORT nor unix:PATH"},
      {"8001", "'8001' is neither HOST:PORT nor unix:PATH"},
      {"127.0.0.1:http", "'127.0.0.1:http' is not HOST:PORT"},
      {"127.0.0.1:", "'127.0.0.1:' is not HOST:PORT"},
      {"127.0.0.1:65536", "'127.0.0.1:65536' is not HOST:PORT with a port up to 65535"},
      {"127.0.0.1:99999999999999999999", "is not HOST:PORT with a port up to 65535"},
      {"no.such.host.invalid:1", "no address of 'no.such.host.invalid:1'"},
      {"unix:", "1 to 107 bytes, not 0"},
      {"unix:" + std::string(200, 'x'), "1 to 107 bytes, not 200"},
  };
  for (const auto& [address, problem] : cases) {
    const auto listener = Listener::Open(address);
    EXPECT_EQ(listener.status().code(), Code::kInvalidArgument) << address;
    EXPECT_THAT(std::string(listener.status().message()), HasSubstr(problem));
  }
}

TEST(ListenerTest, AddressInUse_IsUnavailable) {
  const auto first = MustOpen("127.0.0.1:0");
  const auto second = Listener::Open(first->address());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), AllOf(HasSubstr("bind"), HasSubstr("in use")));
}

// Sockets are made beforehand, for when there is no descriptor left.
class ListenerLimitTest : public ::testing::Test {
 protected:
  ListenerLimitTest() : listener_(MustOpen("127.0.0.1:0")), to_(LoopbackOf(*listener_)) {
    for (int i = 0; i < 8; ++i) clients_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  ~ListenerLimitTest() override { listener_->Stop(); }

  Answer ConnectAndAsk(size_t client) { return sparseagg::service::ConnectAndAsk(clients_[client], to_); }

  Keeper keeper_;
  const std::unique_ptr<Listener> listener_;
  const sockaddr_in to_;
  std::vector<OwnedFd> clients_;
};

TEST_F(ListenerLimitTest, OneTooMany_TakesThePlaceOfOneThatHasNotCalled) {
  keeper_.Start(*listener_, {.all = 3});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(ConnectAndAsk(i), Answer::kTaken) << i;
  listener_->Stop();
  EXPECT_EQ(keeper_.refused(), 0);
}

TEST_F(ListenerLimitTest, OtherFiles_AreNoConnections) {
  keeper_.Start(*listener_, {.all = 3});
  std::vector<OwnedFd> others;
  for (int i = 0; i < 10; ++i) others.emplace_back(dup(0));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ConnectAndAsk(i), Answer::kTaken) << i;
}

TEST_F(ListenerLimitTest, NoDescriptorLeft_IsARefusal_AndNotTheEnd) {
  keeper_.Start(*listener_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const OwnedFd next(dup(0));
  const rlimit none{static_cast<rlim_t>(next.get()) + 1, before.rlim_max};
  // In between nothing of the fixture: the sanitizer opens a pipe to look at an object with virtual functions.
  const std::vector<OwnedFd>& clients = clients_;
  const sockaddr_in to = to_;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Answer first = sparseagg::service::ConnectAndAsk(clients[0], to);
  const Answer second = sparseagg::service::ConnectAndAsk(clients[1], to);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(first, Answer::kReset);
  EXPECT_EQ(second, Answer::kReset);
  EXPECT_EQ(ConnectAndAsk(2), Answer::kTaken);
  listener_->Stop();
  EXPECT_EQ(keeper_.refused(), 2);
}

TEST_F(ListenerLimitTest, LastDescriptors_AreLeftToFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<OwnedFd> others;
  do others.emplace_back(dup(0));
  while (others.back().get() < 94);
  others.erase(others.begin() + 1);  // for the connection's descriptor; that of the table follows the others
  others.erase(others.begin() + 1);  // for the listener's own
  others.erase(others.begin() + 1);
  const rlimit few{128, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  keeper_.Start(*listener_);
  EXPECT_EQ(ConnectAndAsk(0), Answer::kTaken);
  EXPECT_EQ(ConnectAndAsk(1), Answer::kReset);
  std::vector<OwnedFd> files;
  do files.emplace_back(dup(0));
  while (files.back().get() >= 0);
  listener_->Stop();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GE(files.size(), 30u);
}

// They are refused before another connection is ended for them.
TEST_F(ListenerLimitTest, BeyondTheLimitOfItsHostOrBarred_IsRefused_AndEndsNobody) {
  keeper_.Start(*listener_, {.all = 3, .per_host = 2});
  const OwnedFd honest = SocketOf("127.0.0.3");
  ASSERT_EQ(sparseagg::service::ConnectAndAsk(honest, to_), Answer::kTaken);
  EXPECT_EQ(ConnectAndAsk(0), Answer::kTaken);
  EXPECT_EQ(ConnectAndAsk(1), Answer::kTaken);
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(ConnectAndAsk(i), Answer::kReset) << i;
  keeper_.connections().Bar(keeper_.last());  // of 127.0.0.1, like all but `honest`
  EXPECT_EQ(ConnectAndAsk(5), Answer::kReset);
  listener_->Stop();
  EXPECT_EQ(keeper_.refused(), 4);
  EXPECT_EQ(keeper_.connections().num_open(), 3);
}

TEST_F(ListenerLimitTest, OneTooMany_TakesThePlaceOfTheHostThatHoldsMost) {
  keeper_.Start(*listener_, {.all = 4});
  const OwnedFd honest = SocketOf("127.0.0.3");
  ASSERT_EQ(sparseagg::service::ConnectAndAsk(honest, to_), Answer::kTaken);  // the oldest
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(ConnectAndAsk(i), Answer::kTaken) << i;
  listener_->Stop();
  EXPECT_EQ(keeper_.connections().NumFrom("ipv4:127.0.0.3"), 1);
  EXPECT_EQ(keeper_.connections().num_open(), 4);
}

TEST(CheckLoopbackTest, Address_OffThisMachine_IsRefused) {
  for (const char* address : {"127.0.0.1:8001", "127.1.2.3:0", "localhost:1", "[::1]:1", "unix:/tmp/x", "unix:x"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), IsOk()) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.example.com:1", "example.com:1", ":1",
                              "dns:///127.0.0.1:1", "128.0.0.1:1"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("--insecure")))
        << address;
  }
  for (const char* address : {"", "8001", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "[::1]:x"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("is not HOST:PORT")))
        << address;
  }
}

}  // namespace
}  // namespace sparseagg::service
