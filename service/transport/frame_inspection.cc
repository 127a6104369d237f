#include "service/transport/frame_inspection.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/transport/frame_limiter.h"

namespace sparseagg::service {
namespace {

// Descriptors beyond are not inspected. The listener takes no connection of such a descriptor.
constexpr int kMaxFds = 1 << 17;

// With its frame header a PING has 17 bytes, and in a TLS record no more than this.
constexpr ssize_t kPingBytes = 64;

absl::Duration Now() { return SystemClock().Monotonic(); }

// What is known of a descriptor. Made when the descriptor is first inspected and never freed, so that recvmsg() needs
// no lock. Between InspectFrames and the close, gRPC calls recvmsg() for a descriptor from one thread at a time.
struct Inspected {
  std::atomic<uint64_t> cookie = 0;  // of the socket; 0: none
  std::atomic<int64_t> received_ns = 0;
  bool is_tls = false;
  FrameLimiter limiter{absl::ZeroDuration()};
};

std::array<std::atomic<Inspected*>, kMaxFds> inspected_fds;

struct Listener {
  Mutex mu;
  OnFrameLimit on_limit ABSL_GUARDED_BY(mu);
};

Listener& TheListener() {
  static auto* const listener = new Listener();
  return *listener;
}

void Tell(const char* what) {
  Listener& listener = TheListener();
  MutexLock lock(&listener.mu);
  if (listener.on_limit) listener.on_limit(what);
}

Inspected* Find(int fd) {
  return fd >= 0 && fd < kMaxFds ? inspected_fds[fd].load(std::memory_order_acquire) : nullptr;
}

// Returns: a number that no other socket of the system gets; 0 for what is no socket.
uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

// Returns: null, or the limit that the first `size` bytes of `message` exceed.
const char* ReadFrames(FrameLimiter& limiter, const msghdr& message, size_t size) {
  const absl::Duration now = Now();
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const size_t part = std::min(size, message.msg_iov[i].iov_len);
    const char* const excess = limiter.Read(static_cast<const uint8_t*>(message.msg_iov[i].iov_base), part, now);
    if (excess != nullptr) return excess;
    size -= part;
  }
  return nullptr;
}

// The slot of an SSL connection's FrameLimiter, which OpenSSL frees with the connection.
int LimiterIndex() {
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* limiter, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<FrameLimiter*>(limiter); });
  return index;
}

// Returns: null if `ssl` is not the server's end of an HTTP/2 connection.
FrameLimiter* LimiterOf(SSL* ssl) {
  auto* limiter = static_cast<FrameLimiter*>(SSL_get_ex_data(ssl, LimiterIndex()));
  if (limiter != nullptr || SSL_is_server(ssl) == 0) return limiter;
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl, &protocol, &size);
  if (size != 2 || std::memcmp(protocol, "h2", 2) != 0) return nullptr;
  auto made = std::make_unique<FrameLimiter>(Now());
  if (SSL_set_ex_data(ssl, LimiterIndex(), made.get()) != 1) return nullptr;
  return made.release();
}

}  // namespace

void SetOnFrameLimit(OnFrameLimit on_limit) {
  Listener& listener = TheListener();
  MutexLock lock(&listener.mu);
  listener.on_limit = std::move(on_limit);
}

bool InspectFrames(int fd, bool tls) {
  if (fd < 0 || fd >= kMaxFds) return false;
  Inspected* inspected = Find(fd);
  if (inspected == nullptr) inspected = new (std::nothrow) Inspected();
  if (inspected == nullptr) return false;
  const absl::Duration now = Now();
  inspected->limiter = FrameLimiter(now);
  inspected->is_tls = tls;
  inspected->received_ns.store(absl::ToInt64Nanoseconds(now), std::memory_order_relaxed);
  inspected->cookie.store(CookieOf(fd), std::memory_order_relaxed);
  inspected_fds[fd].store(inspected, std::memory_order_release);
  return true;
}

absl::Duration LastReceived(int fd) {
  const Inspected* const inspected = Find(fd);
  return inspected == nullptr ? absl::ZeroDuration()
                              : absl::Nanoseconds(inspected->received_ns.load(std::memory_order_relaxed));
}

namespace {

ssize_t ReceiveAndInspect(int fd, msghdr* message, int flags) {
  const ssize_t received = syscall(SYS_recvmsg, fd, message, flags);
  if (received <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return received;
  Inspected* const inspected = Find(fd);
  if (inspected == nullptr || inspected->cookie.load(std::memory_order_relaxed) == 0) return received;
  if (received > kPingBytes) {
    inspected->received_ns.store(absl::ToInt64Nanoseconds(Now()), std::memory_order_relaxed);
  }
  if (inspected->is_tls) return received;
  const char* const excess = ReadFrames(inspected->limiter, *message, received);
  if (excess == nullptr) return received;
  // Or the descriptor was closed, and is another socket's now.
  if (CookieOf(fd) != inspected->cookie.exchange(0, std::memory_order_relaxed)) return received;
  Tell(excess);
  errno = ECONNRESET;
  return -1;
}

int ReadSslAndInspect(int (*read)(SSL*, void*, int), SSL* ssl, void* buffer, int size) {
  const int received = read(ssl, buffer, size);
  if (received <= 0) return received;
  FrameLimiter* const limiter = LimiterOf(ssl);
  if (limiter == nullptr) return received;
  const char* const excess = limiter->Read(static_cast<const uint8_t*>(buffer), received, Now());
  if (excess == nullptr) return received;
  Tell(excess);
  // What SSL_get_error() looks for after a failure.
  ERR_raise_data(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT, "too many %s", excess);
  return -1;
}

}  // namespace
}  // namespace sparseagg::service

extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return sparseagg::service::ReceiveAndInspect(fd, message, flags);
}

#ifdef SPARSEAGG_STATIC
// The linker's --wrap=SSL_read sends calls of SSL_read here: two definitions in one program clash.
int __real_SSL_read(SSL* ssl, void* buffer, int size);   // NOLINT(bugprone-reserved-identifier): the linker's name
int __wrap_SSL_read(SSL* ssl, void* buffer, int size) {  // NOLINT(bugprone-reserved-identifier)
  return sparseagg::service::ReadSslAndInspect(&__real_SSL_read, ssl, buffer, size);
}
#else
int SSL_read(SSL* ssl, void* buffer, int size) {
  static const auto next = reinterpret_cast<int (*)(SSL*, void*, int)>(dlsym(RTLD_NEXT, "SSL_read"));
  return sparseagg::service::ReadSslAndInspect(next, ssl, buffer, size);
}
#endif

}  // extern "C"
