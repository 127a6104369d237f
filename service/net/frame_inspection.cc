#include "service/net/frame_inspection.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/net/frame_limiter.h"

namespace sparseagg::service {
namespace {

// Sockets with higher descriptors are not inspected, and the listener takes none.
constexpr int kMaxFds = 1 << 17;

// With its frame header a PING has 17 bytes, and in a TLS record no more than this.
constexpr ssize_t kPingBytes = 64;

absl::Duration Now() { return SystemClock().Monotonic(); }

// Of all connections.
std::atomic<size_t> total_open_streams = 0;
std::atomic<size_t> max_open_streams = SIZE_MAX;

// Streams opened in the present second, of one connection or of all. Thread-safe; at the turn of a second a few streams
// may count twice or not at all.
class OpenedStreams {
 public:
  void Add(size_t count) {
    const int64_t second = absl::ToInt64Seconds(Now());
    if (second_.exchange(second, std::memory_order_relaxed) != second) count_.store(0, std::memory_order_relaxed);
    count_.fetch_add(count, std::memory_order_relaxed);
  }
  size_t count() const {
    const bool is_old = second_.load(std::memory_order_relaxed) != absl::ToInt64Seconds(Now());
    return is_old ? 0 : count_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> second_ = 0;
  std::atomic<size_t> count_ = 0;
};

OpenedStreams total_opened_streams;
std::atomic<size_t> max_opened_streams = SIZE_MAX;

struct Events {
  Mutex mu;
  FrameEvents events ABSL_GUARDED_BY(mu);
};

Events& TheEvents() {
  static auto* const events = new Events();
  return *events;
}

// The frames of one connection. Thread-safe: gRPC receives and sends on different threads.
class Frames {
 public:
  Frames() : limiter_(Now()) {}
  ~Frames() { CountOpen(0); }
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  // As FrameLimiter::ReadReceived, of the first `size` bytes of `parts`.
  const char* Received(const iovec* parts, size_t size) {
    MutexLock lock(&mu_);
    const char* excess = nullptr;
    for (const absl::Duration now = Now(); size > 0 && excess == nullptr; ++parts) {
      const size_t part = std::min(size, parts->iov_len);
      excess = limiter_.ReadReceived(static_cast<const uint8_t*>(parts->iov_base), part, now);
      size -= part;
    }
    CountOpen(limiter_.open_streams());
    if (const size_t opened = limiter_.opened_streams() - counted_streams_; opened > 0) {
      counted_streams_ += opened;
      opened_streams_.Add(opened);
      total_opened_streams.Add(opened);
    }
    return excess;
  }

  void Sent(const iovec* parts, size_t size) {
    MutexLock lock(&mu_);
    for (; size > 0; ++parts) {
      const size_t part = std::min(size, parts->iov_len);
      limiter_.ReadSent(static_cast<const uint8_t*>(parts->iov_base), part);
      size -= part;
    }
    CountOpen(limiter_.open_streams());
  }

  size_t open_streams() const { return open_streams_.load(std::memory_order_relaxed); }
  size_t opened_streams() const { return opened_streams_.count(); }

 private:
  void CountOpen(size_t now) {
    const size_t before = open_streams_.exchange(now, std::memory_order_relaxed);
    if (before != now) total_open_streams.fetch_add(now - before, std::memory_order_relaxed);
  }

  Mutex mu_;
  FrameLimiter limiter_ ABSL_GUARDED_BY(mu_);
  size_t counted_streams_ ABSL_GUARDED_BY(mu_) = 0;  // in opened_streams_
  std::atomic<size_t> open_streams_ = 0;
  OpenedStreams opened_streams_;
};

// What is known of a descriptor. Made when a socket of that number is first inspected and never freed, so that a number
// is found without a lock.
struct Descriptor {
  Mutex mu;
  uint64_t cookie ABSL_GUARDED_BY(mu) = 0;             // of the socket; 0: none
  uint64_t ended_cookie ABSL_GUARDED_BY(mu) = 0;       // of the last one that EndInspection was called for
  std::shared_ptr<Frames> frames ABSL_GUARDED_BY(mu);  // with TLS, null until the first bytes are decrypted
  bool is_tls ABSL_GUARDED_BY(mu) = false;
  int receptions ABSL_GUARDED_BY(mu) = 0;  // at least so many times more than a ping came
  absl::Duration received ABSL_GUARDED_BY(mu);
};

std::array<std::atomic<Descriptor*>, kMaxFds> descriptors;

Descriptor* Find(int fd) { return fd >= 0 && fd < kMaxFds ? descriptors[fd].load(std::memory_order_acquire) : nullptr; }

// The descriptor from which this thread has received last: OpenSSL decrypts on the thread that has received.
thread_local int received_fd = -1;

void TellExcess(const char* excess, int fd) {
  Events& events = TheEvents();
  MutexLock lock(&events.mu);
  if (events.events.on_excess) events.events.on_excess(excess, fd);
}

void TellManyStreams() {
  if (total_open_streams.load(std::memory_order_relaxed) <= max_open_streams.load(std::memory_order_relaxed) &&
      total_opened_streams.count() <= max_opened_streams.load(std::memory_order_relaxed)) {
    return;
  }
  Events& events = TheEvents();
  MutexLock lock(&events.mu);
  if (events.events.on_many_streams) events.events.on_many_streams();
}

// Returns: the frames of a connection without TLS; null if `fd` is none.
std::shared_ptr<Frames> FramesOf(int fd) {
  Descriptor* const descriptor = Find(fd);
  if (descriptor == nullptr) return nullptr;
  MutexLock lock(&descriptor->mu);
  return descriptor->is_tls ? nullptr : descriptor->frames;
}

void NoteReception(int fd, ssize_t size) {
  received_fd = fd;
  Descriptor* const descriptor = Find(fd);
  if (descriptor == nullptr || size <= kPingBytes) return;
  MutexLock lock(&descriptor->mu);
  descriptor->received = Now();
  descriptor->receptions = std::min(descriptor->receptions + 1, 2);
}

// What hangs on an SSL connection of HTTP/2, and is freed with it.
struct SslFrames {
  std::shared_ptr<Frames> frames = std::make_shared<Frames>();
  int fd = -1;
};

int SslIndex() {
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* frames, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<SslFrames*>(frames); });
  return index;
}

// Returns: null if `ssl` is not the server's end of an HTTP/2 connection.
SslFrames* FramesOf(SSL* ssl) {
  auto* const known = static_cast<SslFrames*>(SSL_get_ex_data(ssl, SslIndex()));
  if (known != nullptr || SSL_is_server(ssl) == 0) return known;
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl, &protocol, &size);
  if (size != 2 || std::memcmp(protocol, "h2", 2) != 0) return nullptr;
  auto made = std::make_unique<SslFrames>();
  if (SSL_set_ex_data(ssl, SslIndex(), made.get()) != 1) return nullptr;
  if (Descriptor* const descriptor = Find(received_fd); descriptor != nullptr) {
    MutexLock lock(&descriptor->mu);
    const bool is_current = descriptor->cookie != 0 && descriptor->cookie == SocketCookie(received_fd);
    if (is_current && descriptor->is_tls && descriptor->frames == nullptr) {
      made->fd = received_fd;
      descriptor->frames = made->frames;
    }
  }
  return made.release();
}

}  // namespace

uint64_t SocketCookie(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0) return cookie;
  // qemu-user 7.2 does not know the option. A socket's inode differs from that of the socket that had the descriptor
  // before.
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

void SetFrameEvents(FrameEvents events) {
  Events& all = TheEvents();
  MutexLock lock(&all.mu);
  max_open_streams = events.max_open_streams == 0 ? SIZE_MAX : events.max_open_streams;
  max_opened_streams = events.max_streams_per_second == 0 ? SIZE_MAX : events.max_streams_per_second;
  all.events = std::move(events);
}

InspectedSocket InspectFrames(int fd, bool tls) {
  if (fd < 0 || fd >= kMaxFds) return {};
  const InspectedSocket socket{fd, SocketCookie(fd)};
  Descriptor* descriptor = Find(fd);
  if (descriptor == nullptr) descriptor = new (std::nothrow) Descriptor();
  if (descriptor == nullptr) return {};
  {
    MutexLock lock(&descriptor->mu);
    descriptor->cookie = socket.cookie;
    descriptor->frames = tls ? nullptr : std::make_shared<Frames>();
    descriptor->is_tls = tls;
    descriptor->receptions = 0;
    descriptor->received = Now();
  }
  descriptors[fd].store(descriptor, std::memory_order_release);
  return socket;
}

bool EndInspection(const InspectedSocket& socket) {
  Descriptor* const descriptor = Find(socket.fd);
  if (descriptor == nullptr) return false;
  MutexLock lock(&descriptor->mu);
  if (descriptor->cookie != socket.cookie) return false;
  descriptor->ended_cookie = std::exchange(descriptor->cookie, 0);
  descriptor->frames = nullptr;
  return true;
}

SocketActivity ActivityOf(const InspectedSocket& socket) {
  Descriptor* const descriptor = Find(socket.fd);
  if (descriptor == nullptr) return {};
  MutexLock lock(&descriptor->mu);
  if (descriptor->cookie != socket.cookie) return {};
  const size_t open = descriptor->frames == nullptr ? 0 : descriptor->frames->open_streams();
  const size_t opened = descriptor->frames == nullptr ? 0 : descriptor->frames->opened_streams();
  return {descriptor->receptions > 1, descriptor->received, open + opened, open};
}

namespace {

// Returns: whether `fd` is a socket that EndInspection was called for.
bool HasEnded(int fd) {
  Descriptor* const descriptor = Find(fd);
  if (descriptor == nullptr) return false;
  MutexLock lock(&descriptor->mu);
  return descriptor->cookie == 0 && descriptor->ended_cookie == SocketCookie(fd);
}

ssize_t ReceiveAndInspect(int fd, msghdr* message, int flags) {
  // shutdown() leaves what has come already to be received.
  if (HasEnded(fd)) {
    errno = ECONNRESET;
    return -1;
  }
  const ssize_t received = syscall(SYS_recvmsg, fd, message, flags);
  if (received <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return received;
  NoteReception(fd, received);
  const std::shared_ptr<Frames> frames = FramesOf(fd);
  if (frames == nullptr) return received;
  const char* const excess = frames->Received(message->msg_iov, received);
  if (excess == nullptr) {
    TellManyStreams();
    return received;
  }
  // Or gRPC has closed the descriptor before EndInspection, and it is another socket's now.
  if (!EndInspection({fd, SocketCookie(fd)})) return received;
  TellExcess(excess, fd);
  errno = ECONNRESET;
  return -1;
}

ssize_t SendAndInspect(int fd, const msghdr* message, int flags) {
  const ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);
  if (sent <= 0) return sent;
  if (const std::shared_ptr<Frames> frames = FramesOf(fd); frames != nullptr) frames->Sent(message->msg_iov, sent);
  return sent;
}

int ReadSslAndInspect(int (*read)(SSL*, void*, int), SSL* ssl, void* buffer, int size) {
  const int received = read(ssl, buffer, size);
  if (received <= 0) return received;
  SslFrames* const ssl_frames = FramesOf(ssl);
  if (ssl_frames == nullptr) return received;
  const iovec part{buffer, static_cast<size_t>(received)};
  const char* const excess = ssl_frames->frames->Received(&part, received);
  if (excess == nullptr) {
    TellManyStreams();
    return received;
  }
  TellExcess(excess, ssl_frames->fd);
  // What SSL_get_error() looks for after a failure.
  ERR_raise_data(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT, "too many %s", excess);
  return -1;
}

int WriteSslAndInspect(int (*write)(SSL*, const void*, int), SSL* ssl, const void* buffer, int size) {
  const int sent = write(ssl, buffer, size);
  auto* const ssl_frames = sent <= 0 ? nullptr : FramesOf(ssl);
  if (ssl_frames == nullptr) return sent;
  const iovec part{const_cast<void*>(buffer), static_cast<size_t>(sent)};
  ssl_frames->frames->Sent(&part, sent);
  return sent;
}

}  // namespace
}  // namespace sparseagg::service

extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return sparseagg::service::ReceiveAndInspect(fd, message, flags);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return sparseagg::service::SendAndInspect(fd, message, flags);
}

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
#ifdef SPARSEAGG_STATIC
// The linker's --wrap sends calls here, because two definitions in one program clash.
int __real_SSL_read(SSL* ssl, void* buffer, int size);
int __real_SSL_write(SSL* ssl, const void* buffer, int size);
int __wrap_SSL_read(SSL* ssl, void* buffer, int size) {
  return sparseagg::service::ReadSslAndInspect(&__real_SSL_read, ssl, buffer, size);
}
int __wrap_SSL_write(SSL* ssl, const void* buffer, int size) {
  return sparseagg::service::WriteSslAndInspect(&__real_SSL_write, ssl, buffer, size);
}
#else
int SSL_read(SSL* ssl, void* buffer, int size) {
  static const auto next = reinterpret_cast<int (*)(SSL*, void*, int)>(dlsym(RTLD_NEXT, "SSL_read"));
  return sparseagg::service::ReadSslAndInspect(next, ssl, buffer, size);
}
int SSL_write(SSL* ssl, const void* buffer, int size) {
  static const auto next = reinterpret_cast<int (*)(SSL*, const void*, int)>(dlsym(RTLD_NEXT, "SSL_write"));
  return sparseagg::service::WriteSslAndInspect(next, ssl, buffer, size);
}
#endif
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
