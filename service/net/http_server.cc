#include "service/net/http_server.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "service/base/try_thread.h"
#include "service/net/address.h"
#include "service/net/listener.h"
#include "service/net/owned_fd.h"

namespace sparseagg::service {
namespace {

class Handler final : public CivetHandler {
 public:
  Handler(std::string path, std::function<HttpPage()> page) : path_(std::move(path)), page_(std::move(page)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override { return Answer(connection, /*with_text=*/true); }
  bool handleHead(CivetServer*, mg_connection* connection) override { return Answer(connection, /*with_text=*/false); }

 private:
  bool Answer(mg_connection* connection, bool with_text) const {
    // CivetWeb also calls the handler for longer paths. `false` makes the answer 404.
    if (mg_get_request_info(connection)->local_uri != path_) return false;
    const HttpPage page = page_();
    const std::string head =
        absl::StrCat("HTTP/1.1 ", page.status, " ", mg_get_response_code_text(connection, page.status),
                     "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ", page.text.size(),
                     "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    if (with_text) mg_write(connection, page.text.data(), page.text.size());
    return true;
  }

  const std::string path_;
  const std::function<HttpPage()> page_;
};

bool IsHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr v6;
    return absl::ConsumeSuffix(&host, "]") && inet_pton(AF_INET6, std::string(host).c_str(), &v6) == 1;
  }
  const auto in_a_name = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; };
  return !host.empty() && std::all_of(host.begin(), host.end(), in_a_name);
}

// A silent connection holds a thread until its request times out, and a probe waits behind all earlier connections. So
// there are many threads, of about 20 KiB each, and a short timeout: a hundred silent connections delay a probe by two
// timeouts. Each thread and each place in the queue may hold a descriptor (kReservedFds in listener.cc).
std::vector<std::string> Settings(const std::string& address) {
  return {"listening_ports", address, "num_threads", "64", "connection_queue", "20", "request_timeout_ms", "1000"};
}

constexpr absl::Duration kWakeInterval = absl::Milliseconds(10);

// Connects to the first address of HOST:PORT that answers, and leaves.
void ConnectOnce(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(HostOf(address).c_str(), address.substr(address.rfind(':') + 1).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const OwnedFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS) return;
  }
}

}  // namespace

struct HttpServer::Impl {
  std::vector<std::unique_ptr<Handler>> handlers;
  std::unique_ptr<CivetServer> server;  // the last member: stops before the handlers go
};

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}

HttpServer::~HttpServer() {
  if (impl_->server == nullptr) return;
  // Workaround: CivetWeb 1.15 sees that it is to stop when a connection comes, or two seconds after the last time that
  // it looked. Remove with: a version that mg_stop() wakes.
  absl::Notification stopped;
  std::thread waker = TryThread([&] {
    do {
      ConnectOnce(address_);
    } while (!stopped.WaitForNotificationWithTimeout(kWakeInterval));
  });
  impl_->server.reset();
  stopped.Notify();
  if (waker.joinable()) waker.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, const HttpPages& pages) {
  RETURN_IF_ERROR(CheckPort(address));
  // CivetWeb also accepts lists of addresses and ports without a host. Nobody would have checked whether other machines
  // reach those.
  if (!IsHost(absl::string_view(address).substr(0, address.rfind(':')))) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  }
  auto server = std::unique_ptr<HttpServer>(new HttpServer);
  try {
    server->impl_->server = std::make_unique<CivetServer>(Settings(address));
    const std::vector<int> ports = server->impl_->server->getListeningPorts();
    if (ports.empty()) return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
    server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports.front());
    for (const auto& [path, page] : pages) {
      server->impl_->handlers.push_back(std::make_unique<Handler>(path, page));
      server->impl_->server->addHandler(path, *server->impl_->handlers.back());
    }
  } catch (const std::exception& error) {
    // CivetWeb tells only that something went wrong.
    const auto probe = Listener::Open(address);
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address, ": ", probe.ok() ? absl::string_view(error.what()) : probe.status().message()));
  }
  return server;
}

}  // namespace sparseagg::service
