#include "service/gateway/gateway.h"

#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/base/clock.h"
#include "service/base/log.h"
#include "service/gateway/browser_policy.h"
#include "service/gateway/connection.h"
#include "service/gateway/peer_stream.h"
#include "service/gateway/router.h"
#include "service/net/address.h"
#include "service/net/connection_table.h"
#include "service/net/listener.h"

namespace sparseagg::service {
namespace {

namespace asio = boost::asio;

// Interval between looks at the peers that a stop waits for.
constexpr absl::Duration kDrainInterval = absl::Milliseconds(50);

// Counts things that exist, and waits for their end. Thread-safe.
class LiveCount {
 public:
  // Returns: a value that counts as one for as long as it lives.
  std::shared_ptr<const void> Add() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    ++count_;
    return {this, [](const LiveCount* self) { const_cast<LiveCount*>(self)->Remove(); }};
  }
  // Returns: whether the count is 0 within `timeout`.
  bool AwaitNone(const Clock& clock, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Duration end = clock.Monotonic() + timeout;
    MutexLock lock(&mu_);
    while (count_ > 0) {
      const absl::Duration left = end - clock.Monotonic();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(&mu_, left);
    }
    return true;
  }

 private:
  void Remove() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (--count_ == 0) changed_.SignalAll();
  }

  Mutex mu_;
  CondVar changed_;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Errors: INTERNAL: OpenSSL does not take what TlsCredentials has checked.
absl::StatusOr<std::shared_ptr<asio::ssl::context>> MakeTls(const TlsPem& pem) {
  auto made = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  boost::system::error_code error;
  made->set_options(
      asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
  if (!error) made->use_certificate_chain(asio::buffer(pem.certificate), error);
  if (!error) made->use_private_key(asio::buffer(pem.key), asio::ssl::context::pem, error);
  if (!error && !pem.client_ca.empty()) {
    made->add_certificate_authority(asio::buffer(pem.client_ca), error);
    if (!error) made->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, error);
  }
  if (error) return absl::InternalError(absl::StrCat("TLS of the HTTP gateway: ", error.message()));
  return made;
}

}  // namespace

struct Gateway::Impl {
  Impl(ServerContext* server, std::optional<BrowserPolicy> policy, const TlsCredentials* the_tls, Pages pages,
       absl::Duration min_idle)
      : tls(the_tls), router(std::move(policy), std::move(pages)), table(&server->clock, min_idle) {}

  // The rest runs on `thread`.
  void Accept(int fd, const std::string& peer);
  std::shared_ptr<asio::ssl::context> CurrentTls();

  const TlsCredentials* const tls;
  const Router router;
  ConnectionTable table;
  LiveCount calls;
  LiveCount live_connections;
  std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work{io->get_executor()};
  // Opens the descriptors that `io` needs for sockets, which it would else open for the first connection.
  asio::ip::tcp::socket first_socket{*io};
  std::optional<ConnectionServices> services;
  std::map<Connection*, std::weak_ptr<Connection>> connections;
  std::shared_ptr<const TlsPem> tls_pem;
  std::shared_ptr<asio::ssl::context> tls_context;
  bool is_draining = false;
  std::atomic<bool> is_shut_down = false;
  std::thread thread;
  std::unique_ptr<Listener> listener;
};

std::shared_ptr<asio::ssl::context> Gateway::Impl::CurrentTls() {
  if (tls == nullptr) return nullptr;
  std::shared_ptr<const TlsPem> pem = tls->pem();
  if (pem == tls_pem) return tls_context;
  tls_pem = std::move(pem);
  auto made = MakeTls(*tls_pem);
  if (made.ok()) {
    tls_context = *std::move(made);
  } else {
    Log(LogLevel::kError, "http_certificate_not_reloaded", {{"reason", made.status().message()}});
  }
  return tls_context;
}

void Gateway::Impl::Accept(int fd, const std::string& peer) {
  int family = AF_INET;
  socklen_t size = sizeof(family);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
  boost::system::error_code error;
  asio::ip::tcp::socket socket(*io);
  // A flood may have ended it already: then the thread must be done with it as fast as the listener is.
  const bool is_wanted = !is_draining && table.Has(peer);
  if (is_wanted) socket.assign(family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), fd, error);
  if (!is_wanted || error) {
    shutdown(fd, SHUT_RDWR);
    close(fd);
    return;
  }
  std::shared_ptr<const void> live = live_connections.Add();
  auto made = std::make_shared<Connection*>(nullptr);
  // A connection ends on this thread, or on a thread of the pool that has answered its last call.
  auto on_end = [this, made, live = std::move(live)] {
    asio::post(*io, [this, key = *made, live] { connections.erase(key); });
  };
  const std::shared_ptr<Connection> connection =
      MakeConnection(*services, MakePeerStream(io, std::move(socket), CurrentTls()), peer, std::move(on_end));
  *made = connection.get();
  connections[connection.get()] = connection;
  connection->Start();
}

Gateway::Gateway() = default;

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(const HttpOptions& options, ServerContext* server, Api* api,
                                                        const TlsCredentials* tls, Pages pages,
                                                        std::function<void(const char* reason)> on_refused) {
  if (absl::StartsWith(options.address, "unix")) {
    return absl::InvalidArgumentError(absl::StrCat("'", options.address, "' is not HOST:PORT"));
  }
  std::optional<BrowserPolicy> policy;
  ConnectionLimits limits{options.max_connections};
  absl::Duration min_idle = absl::ZeroDuration();
  if (api != nullptr) {
    HostRule host_rule = HostRule::kAny;
    if (!server->authenticator.IsRequired()) {
      host_rule = CheckLoopback(options.address, "").ok() ? HostRule::kLocal : HostRule::kPrivate;
    }
    ASSIGN_OR_RETURN(policy, BrowserPolicy::Create(options.origins, host_rule));
    limits.per_host = HostShare(options.max_connections, options.max_connections_per_address);
    min_idle = ConnectionTable::kIdle;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Open(options.address));
  std::unique_ptr<Gateway> gateway(new Gateway);
  gateway->impl_ = std::make_unique<Impl>(server, std::move(policy), tls, std::move(pages), min_idle);
  Impl& impl = *gateway->impl_;
  impl.services =
      ConnectionServices{impl.io, server, api, &impl.router, &impl.table, [&impl] { return impl.calls.Add(); }};
  impl.listener = std::move(listener);
  impl.thread = std::thread([io = impl.io] { io->run(); });
  impl.listener->LeaveUninspected();
  // Idle from now on: a flood must not fill the gateway with connections that are yet to begin.
  const auto take = [&impl](int fd, const std::string& peer) {
    impl.table.SetIdleness(peer, Idleness::kUnused);
    asio::post(*impl.io, [&impl, fd, peer] { impl.Accept(fd, peer); });
  };
  impl.listener->Start(limits, tls != nullptr, &impl.table, take, std::move(on_refused));
  return gateway;
}

Gateway::~Gateway() { Shutdown(absl::ZeroDuration()); }

const std::string& Gateway::address() const { return impl_->listener->address(); }

uint64_t Gateway::num_connections() const { return impl_->table.num_open(); }

void Gateway::Shutdown(absl::Duration grace) {
  Impl& impl = *impl_;
  if (impl.is_shut_down.exchange(true)) return;
  impl.listener->Stop();
  // For each connection; one may end while others are told.
  const auto tell = [&impl](void (Connection::*what)()) {
    asio::post(*impl.io, [&impl, what] {
      impl.is_draining = true;
      const auto connections = impl.connections;
      for (const auto& [key, weak] : connections) {
        if (const auto connection = weak.lock()) (connection.get()->*what)();
      }
    });
  };
  const Clock& clock = impl.services->server->clock;
  const absl::Duration end = clock.Monotonic() + grace;
  absl::Duration left = grace;
  do {
    tell(&Connection::Drain);
    if (impl.live_connections.AwaitNone(clock, std::min(left, kDrainInterval))) break;
    left = end - clock.Monotonic();
  } while (left > absl::ZeroDuration());
  tell(&Connection::Close);
  // A merge or a disk may take its time; the process has a watchdog.
  impl.calls.AwaitNone(clock, absl::InfiniteDuration());
  impl.live_connections.AwaitNone(clock, absl::InfiniteDuration());
  impl.work.reset();
  if (impl.thread.joinable()) impl.thread.join();
}

}  // namespace sparseagg::service
