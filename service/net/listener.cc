#include "service/net/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/net/address.h"

namespace sparseagg::service {
namespace {

// Descriptors that connections leave to files, to gRPC itself, and to the 32 connections for metrics and probes.
constexpr uint64_t kReservedFds = 128;

// The highest numbers of descriptors are never a connection's. The system gives out the lowest free number, so files
// find a descriptor even while a flood is accepted faster than gRPC and the gateway close what has been ended for it.
constexpr uint64_t kFileFds = 32;

// TCP ends a connection whose peer acknowledges nothing, or keeps its window closed, for this long. Otherwise its calls
// would last until the peer has read what they have sent.
// Workaround: gRPC 1.51 sets this option only on sockets of its own listener, to the same value. Remove with: Listener.
constexpr unsigned int kTcpUserTimeoutMs = 20'000;

constexpr char kNoFiles[] = "too many files are open";

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Raises the soft limit on open files to the hard limit. Returns: the limit in force.
uint64_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

// Returns: the lowest number that no connection may have as its descriptor.
uint64_t FirstFileFd() {
  rlimit limit{};
  const uint64_t max_files = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
  return max_files - std::min(kFileFds, max_files / 4);
}

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<OwnedFd> Listen(int family, const sockaddr* address, socklen_t size) {
  OwnedFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return Failed("socket");
  const int on = 1;
  if (family != AF_UNIX) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), address, size) != 0) return Failed("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) return Failed("listen");
  return fd;
}

// Removes the socket of a dead server. bind() reports anything else at the path. Of two servers that start at the same
// moment, one may still lose its socket: nothing locks the path.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address, socklen_t size) {
  struct stat left {};
  if (lstat(path.c_str(), &left) != 0 || !S_ISSOCK(left.st_mode)) return absl::OkStatus();
  const OwnedFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (probe.get() < 0) return Failed("socket");
  const bool answers = connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
  // EAGAIN: a server listens, but its queue of connections is full.
  if (answers || errno == EAGAIN) return absl::UnavailableError(absl::StrCat(path, ": another server listens there"));
  if (errno == ECONNREFUSED) unlink(path.c_str());
  return absl::OkStatus();
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

// Closes with a reset, so that the peer does not see an orderly end.
void Refuse(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd);
}

}  // namespace

Limits FitToFiles(Limits limits) {
  uint64_t none = 0;
  return FitToFiles(limits, none);
}

Limits FitToFiles(Limits limits, uint64_t& http_connections) {
  // The lowest free descriptor tells how many are open.
  const OwnedFd lowest_free(OpenSpare());
  const uint64_t unavailable = static_cast<uint64_t>(std::max(0, lowest_free.get())) + kReservedFds;
  const uint64_t max_files = RaiseFileLimit();
  // A connection has two descriptors: gRPC's and that of ConnectionTable.
  uint64_t most = max_files > unavailable + 2 ? (max_files - unavailable) / 2 : 1;
  http_connections = std::min(http_connections, most / 4);
  most -= http_connections;
  limits.max_connections = limits.max_connections == 0 ? most : std::min(limits.max_connections, most);
  return limits;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener());
  listener->address_ = address;
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");
    RETURN_IF_ERROR(listener->OpenUnix(std::string(rest)));
    return listener;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is neither HOST:PORT nor unix:PATH"));
  }
  RETURN_IF_ERROR(CheckPort(rest));
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  RETURN_IF_ERROR(listener->OpenHost(std::string(host), std::string(rest.substr(colon + 1))));
  listener->address_ = absl::StrCat(rest.substr(0, colon), ":", PortOf(listener->sockets_.front().get()));
  return listener;
}

absl::Status Listener::OpenUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() + 1 > sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path of a Unix socket has 1 to ", sizeof(address.sun_path) - 1, " bytes, not ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  RETURN_IF_ERROR(RemoveStaleSocket(path, address, size));
  ASSIGN_OR_RETURN(OwnedFd fd, Listen(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), size));
  if (lstat(path.c_str(), &own_socket_) == 0) path_ = path;
  sockets_.push_back(std::move(fd));
  return absl::OkStatus();
}

absl::Status Listener::OpenHost(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("no address of '", host, ":", port, "': ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &freeaddrinfo);
  absl::Status status;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // All addresses use the port that the first one got.
    if (!sockets_.empty()) SetPort(at->ai_addr, PortOf(sockets_.front().get()));
    absl::StatusOr<OwnedFd> fd = Listen(at->ai_family, at->ai_addr, at->ai_addrlen);
    if (fd.ok()) {
      sockets_.push_back(*std::move(fd));
    } else {
      status = fd.status();
    }
  }
  // One address is enough: a name may also have addresses of a family that this machine lacks.
  return sockets_.empty() ? status : absl::OkStatus();
}

Listener::~Listener() { Stop(); }

void Listener::Start(ConnectionLimits limits, bool tls, ConnectionTable* connections,
                     std::function<void(int fd, const std::string& peer)> on_accepted,
                     std::function<void(const char* reason)> on_refused) {
  limits_ = limits;
  tls_ = tls;
  connections_ = connections;
  on_accepted_ = std::move(on_accepted);
  on_refused_ = std::move(on_refused);
  first_file_fd_ = FirstFileFd();
  stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_.Reset(OpenSpare());
  thread_ = std::thread([this] { AcceptAll(); });
}

void Listener::AcceptAll() {
  std::vector<pollfd> polled;
  polled.reserve(sockets_.size() + 2);
  for (const OwnedFd& socket : sockets_) polled.push_back({socket.get(), POLLIN, 0});
  polled.push_back({connections_->closed_fd(), POLLIN, 0});
  polled.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // interrupted
    if (polled.back().revents != 0) return;
    // First, because closed connections make room for new ones.
    connections_->RemoveClosed();
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (polled[i].revents != 0) AcceptOne(polled[i].fd);
    }
  }
}

void Listener::AcceptOne(int listener) {
  constexpr int kFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;
  const int fd = accept4(listener, nullptr, nullptr, kFlags);
  if (fd < 0) {
    if (errno != EMFILE && errno != ENFILE) return;  // the client has gone already
    spare_.Reset();
    if (const int unwanted = accept4(listener, nullptr, nullptr, kFlags); unwanted >= 0) {
      Refuse(unwanted);
      on_refused_(kNoFiles);
    }
    spare_.Reset(OpenSpare());
    return;
  }
  // Workaround: gRPC 1.51 logs an error for each connection whose client has gone already. Remove with: Listener.
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    close(fd);
    return;
  }
  const std::string peer = PeerName(address);
  if (const char* const reason = Admit(fd, peer); reason != nullptr) {
    Refuse(fd);
    on_refused_(reason);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // fails on a Unix socket, where it is not needed
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kTcpUserTimeoutMs, sizeof(kTcpUserTimeoutMs));
  on_accepted_(fd, peer);
}

const char* Listener::Admit(int fd, const std::string& peer) {
  if (static_cast<uint64_t>(fd) >= first_file_fd_) return kNoFiles;
  const std::string host = HostOfPeer(peer);
  if (limits_.per_host != 0 && connections_->NumFrom(host) >= limits_.per_host) {
    return "too many connections of its host are open";
  }
  if (!connections_->PassesBar(host)) return "a client of its host has sent too much";
  if (!MakeRoom(host)) return "too many connections are open";
  const std::optional<bool> inspected = inspects_ ? std::optional(tls_) : std::nullopt;
  return connections_->Add(fd, peer, inspected) ? nullptr : kNoFiles;
}

bool Listener::MakeRoom(const std::string& host) {
  while (limits_.all != 0 && connections_->num_open() >= limits_.all) {
    if (!connections_->EndIdlest(host)) return false;
    connections_->RemoveClosed();
  }
  return true;
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  // Before the sockets are closed, because a later socket at the path might get the same inode.
  struct stat now {};
  const bool there = !path_.empty() && lstat(path_.c_str(), &now) == 0;
  if (there && now.st_dev == own_socket_.st_dev && now.st_ino == own_socket_.st_ino) unlink(path_.c_str());
  path_.clear();
  sockets_.clear();
}

}  // namespace sparseagg::service
