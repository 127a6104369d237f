// Shows a FrameLimiter the bytes that gRPC receives and sends.
#ifndef SPARSEAGG_SERVICE_NET_FRAME_INSPECTION_H_
#define SPARSEAGG_SERVICE_NET_FRAME_INSPECTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace sparseagg::service {

// gRPC 1.51 has no limits on frames and no place for one between the socket and its HTTP/2 parser. So
// frame_inspection.cc defines recvmsg(), sendmsg(), SSL_read() and SSL_write(), by which gRPC receives and sends, and
// which a definition in the program overrides: they call the system's, and then let a FrameLimiter of the connection
// read the bytes, which are not copied. A connection that exceeds a limit fails as if its peer had reset it, before
// gRPC sees the bytes that exceed it.
//
// Workaround. Remove with: a version of gRPC that limits resets, header blocks, control frames and open streams.

// A socket whose frames are read.
struct InspectedSocket {
  int fd = -1;
  uint64_t cookie = 0;  // the system's number of the socket, which no other socket gets
};

// Returns: InspectedSocket::cookie of a socket; 0 for what is no socket.
uint64_t SocketCookie(int fd);

// What the inspection reports, on a thread of gRPC. Must not block.
struct FrameEvents {
  // A limit of FrameLimiter has ended the connection of `fd`, which is -1 if that is not known.
  std::function<void(const char* excess, int fd)> on_excess;
  // In all connections more streams are open, or were opened in the present second, than the following.
  std::function<void()> on_many_streams;
  size_t max_open_streams = 0;  // 0: no limit
  size_t max_streams_per_second = 0;
};

// Sets what is called from now on. Returns after calls under way. Thread-safe.
void SetFrameEvents(FrameEvents events);

// From now on the frames on the socket `fd` are read; with `tls`, what OpenSSL makes of them. To be called before gRPC
// gets the socket. Returns: fd -1 if the socket cannot be inspected.
InspectedSocket InspectFrames(int fd, bool tls);
// Ends that; nothing more is received on the socket. Returns: false if it had ended: the socket may be closed already,
// and its number be in use again.
bool EndInspection(const InspectedSocket& socket);

struct SocketActivity {
  // Bytes have come after those with which a connection begins, and which were more than a ping.
  bool has_called = false;
  absl::Duration received = absl::ZeroDuration();  // when these came last, else when the socket was new; SystemClock
  size_t streams = 0;                              // open ones, and those opened in the present second
  size_t open_streams = 0;
};
// Returns: what is known of an inspected socket. Thread-safe.
SocketActivity ActivityOf(const InspectedSocket& socket);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_FRAME_INSPECTION_H_
